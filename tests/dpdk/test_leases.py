# SPDX-License-Identifier: Apache-2.0
"""Jobs of user nobody, started by harpctl run, on DPDK ports that harpd leases.

Each of the two hosts runs harpd. Port rail0 of each host is one end of a memif.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from crash_rig import NOBODY
from dpdk_tools import ENVIRONMENT, DpdkTools
from driver_rig import PLUGIN_FAILED, REMOTE_ERROR
from harpctl import COMMAND
from harpd_rig import HostDaemon
from netns_tools import wait_until

from harp.bench.streams import SINK, SOURCE, Stream, StreamOptions
from harp.lab import Lab

MORE_BYTES = 2 << 20
QUEUES = 2
UID = 65534
METRICS_PORT = 9747
PORT = """
[[dpdk]]
device = "net_memif0,role={role},socket={folder}/memif.sock"
name = "rail0"
addresses = ["10.9.0.{number}/24"]
queues = {queues}
"""


class Site:
    """Two hosts with harpd and their jobs."""

    def __init__(self, lab: Lab, daemons: list[HostDaemon]) -> None:
        self.lab, self.daemons = lab, daemons

    def stream(self, **more: Any) -> Stream:
        """An NCCL stream between two jobs that `harpctl run` starts."""
        run = [*NOBODY, *COMMAND, "run", "--set", "path=dpdk"]
        shared = ENVIRONMENT | {
            "HARP_DAEMON": "require",
            "HARP_DPDK_MEMORY_MIB": "128",
            "HARP_FRAMES": "2048",
            "HARP_INSTANCES": str(QUEUES),
            "HARP_USER_TIMEOUT_MS": "2000",
        }
        sink, source = (shared | {"HARP_SOCKET": str(daemon.socket)} for daemon in self.daemons)
        prefixes = ([*run, "--"], [*run, "--"])
        return Stream(self.lab, StreamOptions(env=(sink, source), prefix=prefixes, **more))

    def leases(self, number: int = 0) -> list[dict[str, Any]]:
        """The leases of harpd on host `number`."""
        leases: list[dict[str, Any]] = self.daemons[number].query("instances")["instances"]
        return leases

    def wait_free(self) -> None:
        """Wait until neither port is leased."""
        wait_until(lambda: not self.leases(0) and not self.leases(1), "the end of the leases")


@pytest.fixture
def site(tools: DpdkTools, need_root: None) -> Iterator[Site]:
    with ExitStack() as stack:
        lab = stack.enter_context(Lab())
        daemons = [HostDaemon(host, metrics_port=METRICS_PORT) for host in lab.hosts]
        for number, daemon in enumerate(daemons):
            stack.callback(daemon.close)
            folder = daemons[0].folder / "wire"
            folder.mkdir(0o700, exist_ok=True)
            os.chown(folder, UID, -1)
            role = ("server", "client")[number]
            values = {"role": role, "folder": folder, "number": number + 1, "queues": QUEUES}
            daemon.configure(nic=PORT.format(**values))
            daemon.start()
        yield Site(lab, daemons)


@pytest.mark.parametrize("victim", [SINK, SOURCE], ids=["sink", "source"])
def test_the_plugin_runs_on_a_leased_port_and_survives_harpd(site: Site, victim: int) -> None:
    """A stream continues while harpd restarts. The port of a killed rank is leased again."""
    with site.stream() as stream:
        stream.flow(MORE_BYTES)
        before = site.leases(victim)
        site.daemons[victim].end(signal.SIGKILL)
        stream.flow(MORE_BYTES)
        site.daemons[victim].start()
        stream.flow(MORE_BYTES)
        (lease,) = site.leases(victim)
        assert [lease["pid"]] == [entry["pid"] for entry in before]
        assert (lease["ifname"], lease["uid"]) == ("rail0", UID)
        dead, other = stream.ranks[victim], stream.ranks[1 - victim]
        dead.process.kill()
        wait_until(lambda: not site.leases(victim), "the end of the dead rank's lease")
        assert other.process.wait(60) == PLUGIN_FAILED, stream.words()
        wait_until(lambda: other.over, "the end of the other rank's output")
        error = other.events[-1]
        assert (error["event"], error["nccl"]) == ("error", REMOTE_ERROR)
        assert f"10.9.0.{victim + 1}" in error["text"], stream.words()
    site.wait_free()
    with site.stream() as stream:
        stream.flow(MORE_BYTES)
        assert stream.finish() >= MORE_BYTES
        for rank in stream.ranks:
            assert "connected by HARP TCP 10.9.0." in rank.log()
            assert "leased from harpd" in rank.log()
    site.wait_free()


# Runs on a host and prints what its harpd exports to Prometheus.
SCRAPE = f"""
import urllib.request
with urllib.request.urlopen("http://127.0.0.1:{METRICS_PORT}/metrics", timeout=10) as answer:
    print(answer.read().decode())
"""


def test_all_queues_of_a_port_are_shown(site: Site) -> None:
    """stats, flows, metrics and check show the stacks of both queues and their connections."""
    with site.stream(channels=4) as stream:
        stream.flow(MORE_BYTES)
        daemon, pid = site.daemons[0], stream.ranks[SINK].process.pid

        def show(*args: str) -> Any:
            command = daemon.command(*COMMAND, *args, "-o", "json")
            env = os.environ | {"HARP_CONFIG": str(daemon.file), "HARP_SOCKET": str(daemon.socket)}
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)

        for command in ("stats", "flows"):
            stacks = show(command, "--pid", str(pid))["instances"]
            assert {stack["identity"]["ifname"] for stack in stacks} == {"rail0"}
            assert sorted(stack["identity"]["queue"] for stack in stacks) == [0, 1]
            flows = [flow for stack in stacks for flow in stack["flows"]]
            assert {flow["remote"] for flow in flows} == {"10.9.0.2"}
            assert all(stack["flows"] for stack in stacks), "both queues have connections"
        scrape = daemon.command(sys.executable, "-c", SCRAPE)

        def metrics(prefix: str) -> list[float]:
            """The current values of the metrics with this prefix."""
            text = subprocess.run(scrape, capture_output=True, text=True, check=True).stdout
            lines = [line for line in text.splitlines() if line.startswith(prefix)]
            return [float(line.split()[-1]) for line in lines]

        assert metrics('harp_instances{device="rail0"') == [QUEUES]
        # The counters of the job's driver are read once a second.
        metric = 'harp_port_xstat_total{device="rail0",name="rx_good_packets",slot="0"}'
        wait_until(lambda: any(metrics(metric)), "a packet that the driver counts")

        def sent_bytes() -> int:
            first, second = show("stats", "--pid", str(pid))["instances"]
            assert second["xstats"] == {}
            return int(first["xstats"]["tx_good_bytes"])

        wait_until(lambda: sent_bytes() > 0, "a byte that the driver counts")
        findings = {item["name"]: item for item in show("check", "dpdk:rail0")["findings"]}
        assert "leased" in findings["dpdk-lease"]["text"]
        assert "dpdk-device" not in findings, "the leased port was not opened"
        assert [lease["ifname"] for lease in show("instances")["instances"]] == ["rail0"]
        assert stream.finish() >= MORE_BYTES
    site.wait_free()
