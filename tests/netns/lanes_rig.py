# SPDX-License-Identifier: Apache-2.0
"""Helpers for lane tests: rails far slower than the processors, and streams over them."""

from collections.abc import Callable

from harp.bench.streams import SINK, SOURCE, Stream, StreamOptions
from harp.errors import HarpError
from harp.lab import Lab, LabOptions
from harp.lab.rails import Rails
from harp.stats.discover import find
from harp.stats.instance import look

MIB = 1 << 20
TICK_MS = 20
# 7.5 MB/s per rail, which a busy machine can still carry.
MBIT = 60
QUEUE_MS = 100  # bbr, the default here, loses many packets with shorter queues
# The default; the kernel's minimum retransmission timeout is 200 ms.
LANE_TIMEOUT_MS = 500
# On rails this slow, ranks that spin would only take both processors from all others.
REST_US = 100


def railed(rails: int = 2, *, ipv6: bool = False) -> Lab:
    """Two hosts with one NIC per rail."""
    return Lab(LabOptions(ipv6=ipv6, rails=rails))


def shaped(lab: Lab) -> Rails:
    """Limit each rail's bandwidth. Return the rails."""
    # No kernel connection may start with the metrics of one that saw a cut rail.
    for host in lab.hosts:
        host.sysctl("ipv4/tcp_no_metrics_save", 1)
    rails = Rails(lab)
    for rail in range(lab.options.rails):
        rails.shape(rail, MBIT, queue_ms=QUEUE_MS)
    return rails


def options(
    *paths: str, sender: dict[str, str] | None = None, channels: int = 1, **env: str
) -> StreamOptions:
    """paths: HARP_PATH of receiver and sender, or one for both. env: variables of both ranks.
    HARP_XDP_BYTES_MAX makes auto use both kinds of lane on veth."""
    common = {
        "HARP_LANE_TIMEOUT_MS": str(LANE_TIMEOUT_MS),
        "HARP_XDP_BYTES_MAX": "3000",
        **env,
    }
    return StreamOptions(
        tick_ms=TICK_MS,
        rest_us=REST_US,
        channels=channels,
        env=(
            {"HARP_PATH": paths[0], **common},
            {"HARP_PATH": paths[-1], **common, **(sender or {})},
        ),
    )


def bytes_to(rails: Rails, host: int) -> list[int]:
    """Return the bytes of frames that the switch has sent to the host, by rail."""
    totals: list[int] = []

    def read_once(counts: list[int]) -> bool:
        totals.extend(counts)
        return False

    rails.watch(host, read_once)
    return totals


def wait_for_rails(stream: Stream, rails: Rails, used: list[int], more: int = MIB) -> None:
    """Wait until each of these rails has carried `more` bytes."""
    before = now = bytes_to(rails, SINK)
    for _ in range(300):
        if all(now[rail] - before[rail] >= more for rail in used):
            return
        wait_for_ticks(stream, SINK, 10)
        now = bytes_to(rails, SINK)
    raise HarpError(f"the rails {used} are not used: {before} {now} {stream.words()}")


def ticks_without_a_byte(stream: Stream, since: int) -> int:
    """Return the longest series of receiver ticks without a new byte, from sample `since` on.

    Ticks, not milliseconds: a process that is not scheduled has no ticks.
    """
    longest = current = 0
    samples = stream.ranks[SINK].samples
    for old, new in zip(samples[since:], samples[since + 1 :], strict=False):
        current = current + 1 if new.count == old.count else 0
        longest = max(longest, current)
    return longest


def wait_for_ticks(stream: Stream, rank: int, count: int) -> None:
    samples = stream.ranks[rank].samples
    goal = len(samples) + count
    stream.wait(lambda: len(samples) >= goal, f"{count} ticks")


def warnings(stream: Stream, rank: int) -> list[str]:
    return [line for line in stream.ranks[rank].log().splitlines() if "NCCL WARN" in line]


def counters(stream: Stream, rank: int) -> dict[str, int]:
    """Return the counters of the rank's job, as exported to Prometheus."""
    pid = stream.ranks[rank].events[0]["pid"]
    with find() as regions:
        jobs = [job for job in look(regions, flows=False).jobs if job.pid == pid]
    assert len(jobs) == 1, f"job {pid}: {len(jobs)} pages"
    values = jobs[0].snapshot.counters
    return {name: int(values[name]) for name in values.dtype.names or ()}


# A change of one rail of the lab. CUTS has pairs: fail and recover.
Cut = Callable[[Lab, int], object]


def cable(host: int, state: str) -> Cut:
    """Set the state of the switch's port to which the host's cable leads."""

    def change(lab: Lab, rail: int) -> None:
        assert lab.switch is not None
        lab.switch.run("ip", "link", "set", lab.switch.rails[rail][host], state)

    return change


def nic(host: int, state: str) -> Cut:
    return lambda lab, rail: lab.hosts[host].run(
        "ip", "link", "set", lab.hosts[host].nics[rail].ifname, state
    )


CUTS: dict[str, tuple[Cut, Cut]] = {
    "silent": (
        lambda lab, rail: Rails(lab).silence(rail),
        lambda lab, rail: Rails(lab).restore(rail),
    ),
    "unplugged receiver": (cable(SINK, "down"), cable(SINK, "up")),
    "unplugged sender": (cable(SOURCE, "down"), cable(SOURCE, "up")),
    "receiver's NIC off": (nic(SINK, "down"), nic(SINK, "up")),
    "sender's NIC off": (nic(SOURCE, "down"), nic(SOURCE, "up")),
}
