# SPDX-License-Identifier: Apache-2.0
"""Rails of test hosts: shaped, cut and restored, observed by a stream."""

import errno
import json
import socket
from collections.abc import Iterator

import pytest
from rail_paths import path_bytes, shape_paths

from harp.bench import failover
from harp.bench.streams import Sample, Stream, StreamOptions, pause_ns, rate_bytes_per_s
from harp.errors import Exit, HarpError
from harp.lab import Lab, LabOptions, RailOptions
from harp.lab.netns import in_namespace
from harp.lab.rails import Rails

MBIT = 125_000
HANGS_S = 60
# One connection, which stays: a shaped queue that is full, on a busy machine, is silence enough for
# a lane to be given up.
ONE = {"HARP_PATH": "kernel", "HARP_RAILS": "own", "HARP_LANE_TIMEOUT_MS": "60000"}
KERNEL = StreamOptions(env=(ONE, ONE))


@pytest.fixture(params=[False, True], ids=["IPv4", "IPv6"])
def lab(request: pytest.FixtureRequest, need_root: None) -> Iterator[Lab]:
    with Lab(LabOptions(ipv6=request.param, rails=(RailOptions(9000, offload=False),))) as made:
        yield made


def reaches(lab: Lab, rail: int) -> bool:
    """Can host 0 connect to host 1 over the rail?

    A no is the kernel's own: no route, or no answer to neighbor discovery (three times, over
    three seconds). So it leaves no entry half asked for that the next call would have to wait for.
    """
    address = lab.hosts[1].nics[rail].address
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    found: list[bool] = []
    listeners: list[socket.socket] = []

    def listen(_ipr: object) -> None:
        listeners.append(socket.create_server((address, 0), family=family))

    def call(_ipr: object) -> None:
        try:
            socket.create_connection(listeners[0].getsockname()[:2], HANGS_S).close()
            found.append(True)
        except OSError as error:
            if error.errno not in (errno.EHOSTUNREACH, errno.ENETUNREACH):
                raise
            found.append(False)

    in_namespace(lab.hosts[1].netns, listen)
    with listeners[0]:
        in_namespace(lab.hosts[0].netns, call)
    return found[0]


def carrier(lab: Lab, host: int, rail: int) -> bool:
    ifname = lab.hosts[host].nics[rail].ifname
    link = json.loads(lab.hosts[host].run("ip", "-j", "link", "show", "dev", ifname))[0]
    return bool(link["operstate"] == "UP")


def test_rails_are_apart_and_have_shapes_of_their_own(lab: Lab) -> None:
    assert [nic.ifname for nic in lab.hosts[1].nics] == ["eth0", "eth1"]
    for host in lab.hosts:
        shown = json.loads(host.run("ip", "-j", "link"))
        mtus = {link["ifname"]: link["mtu"] for link in shown}
        assert (mtus["eth0"], mtus["eth1"]) == (1500, 9000)
    assert reaches(lab, 0)
    assert reaches(lab, 1)


@pytest.mark.sample("IPv6")
def test_a_rail_is_cut_and_comes_back(lab: Lab) -> None:
    rails = Rails(lab)
    for cut, heal, seen in (
        (lambda: rails.silence(1), lambda: rails.restore(1), True),
        (lambda: rails.unplug(0, 1), lambda: rails.plug(0, 1), False),
        (lambda: rails.down(0, 1), lambda: rails.up(0, 1), False),
    ):
        cut()
        assert carrier(lab, 0, 1) == seen
        assert not reaches(lab, 1)
        assert reaches(lab, 0)
        heal()
        assert reaches(lab, 1)


def test_a_stream_is_as_fast_as_its_rail_and_ends_well(lab: Lab) -> None:
    rails = Rails(lab)
    rails.shape(0, 80)
    with Stream(lab, KERNEL) as stream:
        stream.flow(2 << 20)
        begin = stream.ranks[0].samples[-1]
        stream.flow(4 << 20)
        end = stream.ranks[0].samples[-1]
        rate = rate_bytes_per_s(stream.ranks[0].samples, begin.at_ns, end.at_ns)
        assert rate < 80 * MBIT
        before = rails.bytes_to(0)
        total = stream.finish()
    assert total >= 6 << 20
    assert before[0] > 6 << 20
    assert before[1] < 1 << 16


def test_paths_of_a_rail_are_chosen_by_the_source_port(lab: Lab) -> None:
    """A stream of one connection stays on one path, whatever rate it has."""
    shape_paths(lab, 0, [100, 100, 100, 100])
    with Stream(lab, KERNEL) as stream:
        stream.flow(1 << 20)
        before = path_bytes(lab, 0, 0)
        assert sum(count > 1 << 19 for count in before) == 1
        shape_paths(lab, 0, [50, 50, 50, 50])
        stream.flow(1 << 20)
        after = path_bytes(lab, 0, 0)
        busy = [new - old > 1 << 19 for new, old in zip(after, before, strict=True)]
        assert busy == [count > 1 << 19 for count in before]
        stream.finish()


def test_the_error_of_a_dead_rank_is_reported(lab: Lab) -> None:
    with Stream(lab, KERNEL) as stream:
        stream.flow(1 << 20)
        stream.ranks[1].process.kill()
        with pytest.raises(HarpError, match="ended first"):
            stream.flow(1 << 40)


def test_bad_shapes_are_named(need_root: None) -> None:
    with pytest.raises(HarpError, match="mtu") as caught:
        Lab(LabOptions(rails=(RailOptions(100),)))
    assert caught.value.code == Exit.USAGE
    with pytest.raises(HarpError, match="rails"):
        Lab(LabOptions(rails=(RailOptions(),) * 4))
    with Lab() as lab, pytest.raises(HarpError, match="switch"):
        Rails(lab)


def test_pauses_and_rates_of_a_timeline() -> None:
    samples = [Sample(at * 10, count) for at, count in enumerate((0, 5, 9, 9, 9, 12, 20))]
    assert pause_ns(samples, 0, 60) == 30
    assert pause_ns(samples, 30, 60) == 20
    assert pause_ns(samples, 0, 100) == 40
    assert pause_ns([], 0, 100) == 100
    assert rate_bytes_per_s(samples, 0, 20) == pytest.approx(9e9 / 20)
    assert rate_bytes_per_s(samples, 21, 29) == 0


def test_a_failed_nic_is_measured(need_root: None) -> None:
    """bench failover: every byte arrives, and the report has the times of the cut."""
    options = failover.FailoverOptions(rounds=1, seconds=0.5, cut_s=0.5, after_s=0.5)
    report = failover.run_failover(options, lambda words: None)
    (found,) = report["rounds"]
    times = found["times_ms"]
    assert 0 < times["cut"] < times["back"] < times["end"]
    assert found["bytes"] > 0
    assert report["longest_pause_ms"] == found["pause_ms"] > 0
    assert {len(row) for row in found["timeline"]["rails"]} == {1 + options.rails}
    json.dumps(report)
