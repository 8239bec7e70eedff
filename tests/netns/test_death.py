# SPDX-License-Identifier: Apache-2.0
"""A process that dies takes everything with it: the link, the queue, its connections."""

import json

import pytest
from netns_tools import Tools, finish, wait_until, xdp_attached

from harp.lab import Lab


@pytest.mark.parametrize("sender", [True, False], ids=["peer-sends", "peer-receives"])
def test_a_process_killed_in_mid_transfer_resets_its_connection(
    tools: Tools, each: Lab, sender: bool
) -> None:
    here, there = each.hosts
    server = tools.serve_tcp(there, "harp", 61000)
    test = "send" if sender else "recv"
    endless = [tools.tcp, test, there.address, "61000", "--kernel", "--bytes", str(1 << 40)]
    client = here.popen(endless)
    tools.started.append(client)
    wait_until(lambda: established(each), "the connection")
    server.kill()
    server.communicate()
    if sender:
        _, err = client.communicate(timeout=60)
        assert "Connection reset by peer" in err
    wait_until(lambda: not xdp_attached(there), "detaching")
    # The queue and the port are free for the next one, at once as far as it can see.
    again = tools.serve_tcp(there, "harp", 61000)
    report = tools.call_tcp(here, "kernel", "send", there.address, 61000, "--bytes", "1000000")
    assert report["bytes"] == 1000000
    json.loads(finish(again)[0].splitlines()[-1])


def established(lab: Lab) -> bool:
    """The kernel end of the connection is up and has moved bytes."""
    out = lab.hosts[0].run("ss", "-Htni", "dst", lab.hosts[1].endpoint(61000))
    return "ESTAB" in out and "bytes_" in out
