# SPDX-License-Identifier: Apache-2.0
"""Instances on real queues publish statistics, which are found while the process lives."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from netns_tools import Tools, wait_until

from harp import stats
from harp.lab import Lab
from harp.stats.instance import Instance, look

HARPCTL = [sys.executable, "-c", "from harp.cli import main; main()"]


def of_process(pid: int) -> list[Instance]:
    """What a process publishes."""
    with stats.find() as found:
        host = look(found)
    assert not [why for bad, why in host.bad if bad == pid]
    return [each for each in host.instances if each.pid == pid]


def test_a_working_instance_is_shown(tools: Tools, each: Lab) -> None:
    here, there = each.hosts
    address = [there.address, "61000"]
    server = tools.serve(there, [tools.tcp, "sink", *address, *tools.side(there, "harp")])
    client = here.popen([tools.tcp, "message", *address, "--kernel", "--seconds", "60"])
    tools.started.append(client)
    # Its connection, once it is there, with a round trip that was measured.
    wait_until(
        lambda: any(
            flow["srtt_ns"] for one in of_process(server.pid) for flow in one.snapshot.flows
        ),
        "a connection in the page",
        20,
    )
    (seen,) = of_process(server.pid)
    identity, snapshot = seen.snapshot.identity, seen.snapshot
    assert (identity.ifname, identity.queue, identity.lease_id) == (there.ifname, 0, 0)
    assert identity.describe.startswith(f"AF_XDP generic copy on {there.ifname} queue 0")
    assert identity.netns == Path(f"/run/netns/{there.netns}").stat().st_ino
    assert (identity.pid, seen.uid, identity.label) == (server.pid, 0, "harp-tcp")
    (flow,) = snapshot.flows
    assert int(flow["local_port"]) == 61000
    assert snapshot.status.flows_open == 1
    before = int(snapshot.counters["rx_packets"])
    wait_until(
        lambda: int(of_process(server.pid)[0].snapshot.counters["rx_packets"]) > before, "packets"
    )
    done = subprocess.run(
        [*HARPCTL, "flows", "--pid", str(server.pid), "-o", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    shown = json.loads(done.stdout)["instances"][0]["flows"][0]
    assert (shown["local"], shown["remote"]) == (there.address, here.address)
    client.send_signal(signal.SIGKILL)
