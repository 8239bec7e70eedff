# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of lanes: rails far slower than the processors, and streams over them."""

from collections.abc import Callable

from harp.bench.streams import SINK, SOURCE, Stream, StreamOptions
from harp.errors import HarpError
from harp.lab import Lab, LabOptions
from harp.lab.rails import Rails
from harp.stats.discover import find
from harp.stats.instance import look

MIB = 1 << 20
TICK_MS = 20
# Each rail: 7.5 MB/s, which a machine that is busy with other things can do too.
MBIT = 60
QUEUE_MS = 100  # bbr, the default here, loses much of what it sends to short ones
# The default; the kernel's shortest retransmission timeout is 200 ms.
LANE_TIMEOUT_MS = 500
# Ranks that spin would have both processors for themselves, whatever so slow a rail brings.
REST_US = 100


def railed(rails: int = 2, *, ipv6: bool = False) -> Lab:
    """Two hosts with so many NICs."""
    return Lab(LabOptions(ipv6=ipv6, rails=rails))


def shaped(lab: Lab) -> Rails:
    """No kernel connection begins with what an earlier one learned while a rail was cut."""
    for host in lab.hosts:
        host.sysctl("ipv4/tcp_no_metrics_save", 1)
    rails = Rails(lab)
    for rail in range(lab.options.rails):
        rails.shape(rail, MBIT, queue_ms=QUEUE_MS)
    return rails


def options(
    *paths: str, sender: dict[str, str] | None = None, channels: int = 1, **env: str
) -> StreamOptions:
    """HARP_PATH of receiver and sender, or of both; env: of both; sender: of it alone. auto has
    lanes of both kinds, which on veth takes a limit."""
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
    """The bytes of frames that left the switch towards the host so far, on each rail."""
    found: list[int] = []

    def once(counts: list[int]) -> bool:
        found.extend(counts)
        return False

    rails.watch(host, once)
    return found


def wait_for_rails(stream: Stream, rails: Rails, used: list[int], more: int = MIB) -> None:
    """Returns when each of these rails has carried so much more."""
    before = now = bytes_to(rails, SINK)
    for _ in range(300):
        if all(now[rail] - before[rail] >= more for rail in used):
            return
        wait_for_ticks(stream, SINK, 10)
        now = bytes_to(rails, SINK)
    raise HarpError(f"the rails {used} are not used: {before} {now} {stream.words()}")


def ticks_without_a_byte(stream: Stream, since: int) -> int:
    """The longest row of the receiver's ticks, from that sample on, that bring nothing new.

    Ticks and not milliseconds: a process that is not let run has none.
    """
    longest = row = 0
    samples = stream.ranks[SINK].samples
    for old, new in zip(samples[since:], samples[since + 1 :], strict=False):
        row = row + 1 if new.count == old.count else 0
        longest = max(longest, row)
    return longest


def wait_for_ticks(stream: Stream, rank: int, count: int) -> None:
    """Lets the rank live through so many of its ticks."""
    samples = stream.ranks[rank].samples
    goal = len(samples) + count
    stream.wait(lambda: len(samples) >= goal, f"{count} ticks")


def warnings(stream: Stream, rank: int) -> list[str]:
    """What the rank's plugin has warned of."""
    return [line for line in stream.ranks[rank].log().splitlines() if "NCCL WARN" in line]


def counters(stream: Stream, rank: int) -> dict[str, int]:
    """What the rank's job counts, as Prometheus would be told."""
    pid = stream.ranks[rank].events[0]["pid"]
    with find() as found:
        jobs = [job for job in look(found, flows=False).jobs if job.pid == pid]
    assert len(jobs) == 1, f"job {pid}: {len(jobs)} pages"
    values = jobs[0].snapshot.counters
    return {name: int(values[name]) for name in values.dtype.names or ()}


# Every way to lose a rail, and how it comes back.
Cut = Callable[[Lab, int], object]  # of a rail


def cable(host: int, state: str) -> Cut:
    """The host's cable is pulled or plugged, at the switch."""

    def change(lab: Lab, rail: int) -> None:
        assert lab.switch is not None
        lab.switch.run("ip", "link", "set", lab.switch.rails[rail][host], state)

    return change


def nic(host: int, state: str) -> Cut:
    """The host switches its NIC off or on."""
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
