# SPDX-License-Identifier: Apache-2.0
"""A steering program that is pinned outlives its maker; the next adopts it, and replaces it."""

import ctypes
import errno
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import steering_api
from netns_tools import Tools, attach, compile_pass, inside, wait_until, xdp_attached
from steering_api import TCP, UDP, Library, RefusedError, Steering
from test_steering import V4, ethernet_of, send_frames

from harp.lab import Host, Lab

PORT = 61000
OWN = bytes(10) + b"\xff\xff" + bytes([10, 77, 0, 2])  # ::ffff:10.77.0.2
PINS = {
    *("xsks", "ports", "addresses", "verdicts", "arrivals", "layout"),
    *("restricted", "sources_v4", "sources_v6"),
    *("program", "link"),
}


def adopt(library: Library, host: Host, at: Path) -> Steering:
    steering: Steering = inside(host, lambda: library.adopt(at, host.ifname))
    return steering


def refusal(library: Library, host: Host, at: Path) -> RefusedError:
    with pytest.raises(RefusedError) as refused:
        adopt(library, host, at).detach()
    assert refused.value.strerror.startswith(f"{host.ifname}: ")
    assert "\n" not in refused.value.strerror
    return refused.value


def sent(lab: Lab, steering: Steering, count: int) -> int:
    """Sends that many frames to a port that is ours; how many packets had a verdict meanwhile."""
    frame = bytes(ethernet_of(lab) / V4.to_us(PORT))
    before = absent(steering)
    send_frames(lab, [frame] * count)
    return absent(steering) - before


def absent(steering: Steering) -> int:
    """Packets that were ours, and nobody's socket was there: what the tests send."""
    return steering.verdicts()["absent"]


def test_adopted_after_its_maker_was_killed(
    tools: Tools, lab: Lab, library: Library, bpffs: Path
) -> None:
    host = lab.hosts[1]
    at = bpffs / "eth0"
    script = [sys.executable, steering_api.__file__, tools.build, at, host.ifname]
    maker = tools.serve(host, script)
    assert {path.name for path in at.iterdir()} == PINS
    maker.kill()
    maker.communicate()
    assert xdp_attached(host)
    first = adopt(library, host, at)
    first.ports_set(TCP, PORT, PORT)
    first.address_set(OWN)
    assert sent(lab, first, 10) == 10
    # The next one finds what that one left.
    first.detach()
    assert xdp_attached(host)
    second = adopt(library, host, at)
    assert absent(second) == 10
    assert sent(lab, second, 10) == 10
    library.unpin(at)
    assert not at.exists()
    assert xdp_attached(host), "who has it open keeps it"
    second.detach()
    wait_until(lambda: not xdp_attached(host), "detaching")


def replace_under_traffic(lab: Lab, steering: Steering, at: Path, pins: set[str]) -> None:
    """Pins it, and replaces it more than five times while frames come, each of which has a verdict;
    detaches it."""
    steering.ports_set(TCP | UDP, PORT, PORT)
    steering.address_set(OWN)
    steering.pin(at)
    done = threading.Event()
    replaced = 0

    def replace() -> None:
        nonlocal replaced
        while not done.is_set():
            steering.replace()
            replaced += 1

    thread = threading.Thread(target=lambda: inside(lab.hosts[1], replace))
    thread.start()
    try:
        for _ in range(20):  # it is as slow as the kernel is busy, or has failed
            assert sent(lab, steering, 100_000) == 100_000
            if replaced > 5:
                break
    finally:
        done.set()
        thread.join()
    assert replaced > 5
    assert {path.name for path in at.iterdir()} == pins
    steering.detach()


def test_replaced_under_traffic_without_a_packet_that_missed_it(
    lab: Lab, library: Library, bpffs: Path
) -> None:
    host, at = lab.hosts[1], bpffs / "eth0"
    replace_under_traffic(lab, attach(library, host), at, PINS)
    again = adopt(library, host, at)
    assert sent(lab, again, 10) == 10
    library.unpin(at)
    again.detach()


def pin(lab: Lab, library: Library, bpffs: Path) -> Path:
    """Pin a program on the second host as harpd does, and hold nothing of it."""
    steering = attach(library, lab.hosts[1])
    steering.pin(bpffs / "eth0")
    steering.detach()
    return bpffs / "eth0"


@pytest.fixture
def pinned(lab: Lab, library: Library, bpffs: Path) -> Iterator[Path]:
    """Pins of the second host's program that no process holds."""
    yield pin(lab, library, bpffs)
    if (bpffs / "eth0").exists():
        library.unpin(bpffs / "eth0")


def test_a_replacement_that_was_cut_off_is_finished(
    lab: Lab, library: Library, pinned: Path
) -> None:
    """Between the link's change and the pin's: the new program has its first name."""
    host = lab.hosts[1]
    steering = adopt(library, host, pinned)
    (pinned / "program").rename(pinned / "old")
    steering.replace()
    (pinned / "program").rename(pinned / "program_new")
    (pinned / "old").rename(pinned / "program")
    steering.detach()
    again = adopt(library, host, pinned)
    assert {path.name for path in pinned.iterdir()} == PINS
    again.replace()
    again.detach()


def test_an_older_layout_is_stale(lab: Lab, library: Library, pinned: Path) -> None:
    libbpf = ctypes.CDLL("libbpf.so.1")
    fd = libbpf.bpf_obj_get(bytes(pinned / "layout"))
    assert fd >= 0
    zero, layout = ctypes.c_uint32(0), ctypes.c_uint32(0)
    assert libbpf.bpf_map_update_elem(fd, ctypes.byref(zero), ctypes.byref(layout), 0) == 0
    os.close(fd)
    error = refusal(library, lab.hosts[1], pinned)
    assert error.errno == errno.ESTALE
    assert "layout 0" in error.strerror
    assert xdp_attached(lab.hosts[1]), "refused is not removed"


def test_an_older_layout_with_fewer_maps_is_named(lab: Lab, library: Library, pinned: Path) -> None:
    """As the version before left it: without the map of arrivals."""
    (pinned / "arrivals").unlink()
    libbpf = ctypes.CDLL("libbpf.so.1")
    fd = libbpf.bpf_obj_get(bytes(pinned / "layout"))
    assert fd >= 0
    zero, layout = ctypes.c_uint32(0), ctypes.c_uint32(1)
    assert libbpf.bpf_map_update_elem(fd, ctypes.byref(zero), ctypes.byref(layout), 0) == 0
    os.close(fd)
    error = refusal(library, lab.hosts[1], pinned)
    assert error.errno == errno.ESTALE
    assert "by another version of HARP (layout 1, ours is 3)" in error.strerror
    assert xdp_attached(lab.hosts[1]), "refused is not removed"


def test_maps_of_another_shape_are_stale(lab: Lab, library: Library, pinned: Path) -> None:
    (pinned / "ports").unlink()
    (pinned / "xsks").rename(pinned / "ports")
    (pinned / "addresses").rename(pinned / "xsks")
    (pinned / "ports").rename(pinned / "addresses")
    (pinned / "verdicts").rename(pinned / "ports")
    (pinned / "layout").rename(pinned / "verdicts")
    assert refusal(library, lab.hosts[1], pinned).errno == errno.ESTALE
    (pinned / "xsks").rename(pinned / "layout")
    assert refusal(library, lab.hosts[1], pinned).errno == errno.ESTALE


def test_maps_of_another_program_are_stale(
    lab: Lab, library: Library, pinned: Path, bpffs: Path
) -> None:
    """Of the right shape, but nobody's packets are judged by them."""
    other = attach(library, lab.hosts[0])
    other.pin(bpffs / "other")
    other.detach()
    (pinned / "ports").unlink()
    (bpffs / "other" / "ports").rename(pinned / "ports")
    error = refusal(library, lab.hosts[1], pinned)
    assert error.errno == errno.ESTALE
    library.unpin(bpffs / "other")


def test_pins_of_a_recreated_interface_are_not_adopted(
    lab: Lab, library: Library, pinned: Path
) -> None:
    here, there = lab.hosts
    assert refusal(library, here, pinned).errno == errno.ESTALE
    there.run("ip", "link", "delete", there.ifname)
    there.run("ip", "link", "add", there.ifname, "type", "veth", "peer", "name", "other")
    error = refusal(library, there, pinned)
    assert error.errno == errno.ESTALE
    assert "not attached to this interface" in error.strerror


def test_a_missing_interface_is_an_error(lab: Lab, library: Library, pinned: Path) -> None:
    with pytest.raises(RefusedError) as refused:
        inside(lab.hosts[1], lambda: library.adopt(pinned, "nosuch0"))
    assert refused.value.errno == errno.ENODEV


def test_pins_of_which_one_is_missing_are_refused_and_removed(
    lab: Lab, library: Library, bpffs: Path
) -> None:
    for name in sorted(PINS):
        pinned = pin(lab, library, bpffs)
        (pinned / name).unlink()
        assert refusal(library, lab.hosts[1], pinned).errno == errno.ESTALE, name
        library.unpin(pinned)
        assert not pinned.exists(), name
        wait_until(lambda: not xdp_attached(lab.hosts[1]), "detaching")


@pytest.mark.parametrize("name", ["link", "ports", "program"])
def test_something_else_by_a_name_of_ours(
    lab: Lab, library: Library, pinned: Path, name: str
) -> None:
    (pinned / name).unlink()
    (pinned / name).mkdir()
    assert refusal(library, lab.hosts[1], pinned).errno == errno.ESTALE
    with pytest.raises(RefusedError):
        library.unpin(pinned)  # a directory is nobody's pin
    (pinned / name).rmdir()
    if pinned.exists():
        pinned.rmdir()


def test_files_of_other_programs_stay(lab: Lab, library: Library, pinned: Path) -> None:
    (pinned / "mine").mkdir()
    adopt(library, lab.hosts[1], pinned).detach()
    library.unpin(pinned)
    assert [path.name for path in pinned.iterdir()] == ["mine"]
    (pinned / "mine").rmdir()
    with pytest.raises(RefusedError) as refused:
        library.unpin(pinned)
    assert refused.value.errno == errno.ENOENT


def test_pins_are_not_overwritten(lab: Lab, library: Library, pinned: Path) -> None:
    here = attach(library, lab.hosts[0])
    with pytest.raises(RefusedError) as refused:
        here.pin(pinned)
    assert refused.value.errno == errno.EEXIST
    adopt(library, lab.hosts[1], pinned).detach()
    assert {path.name for path in pinned.iterdir()} == PINS
    here.detach()


def test_where_nothing_is_pinned(lab: Lab, library: Library, bpffs: Path, tmp_path: Path) -> None:
    for at in (bpffs, bpffs / "nosuch", tmp_path, tmp_path / "nosuch"):
        assert refusal(library, lab.hosts[1], at).errno == errno.ENOENT
        with pytest.raises(RefusedError) as refused:
            library.unpin(at)
        assert refused.value.errno == errno.ENOENT
        bpffs.mkdir(exist_ok=True)


def test_pinning_needs_a_bpffs(lab: Lab, library: Library, tmp_path: Path, bpffs: Path) -> None:
    steering = attach(library, lab.hosts[1])
    for at, error in (
        (tmp_path, errno.EOPNOTSUPP),
        (tmp_path / "made", errno.EOPNOTSUPP),
        (tmp_path / "no" / "such", errno.ENOENT),
        (bpffs / "eth0.5", errno.EINVAL),
    ):
        with pytest.raises(RefusedError) as refused:
            steering.pin(at)
        assert refused.value.errno == error
    assert not (tmp_path / "made").exists()
    # After all of that it can still be pinned, once.
    steering.pin(bpffs / "eth0")
    with pytest.raises(RefusedError) as refused:
        steering.pin(bpffs / "again")
    assert refused.value.errno == errno.EBUSY
    library.unpin(bpffs / "eth0")
    steering.detach()
    wait_until(lambda: not xdp_attached(lab.hosts[1]), "detaching")


AS_NOBODY = """
import os, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from steering_api import Library, RefusedError
library = Library(Path({build!r}))
os.setgroups([])
os.setuid(65534)
for call in (lambda: library.adopt(Path({at!r}), {ifname!r}), lambda: library.unpin(Path({at!r}))):
    try:
        call()
    except RefusedError as refused:
        print(refused.errno)
"""


def test_adopting_needs_privileges(tools: Tools, lab: Lab, pinned: Path) -> None:
    """Neither the directory nor the system call is open to others."""
    host = lab.hosts[1]
    code = AS_NOBODY.format(
        tests=str(Path(__file__).parent),
        build=str(tools.build),
        at=str(pinned),
        ifname=host.ifname,
    )
    out = host.run(sys.executable, "-c", code)
    assert out.split() == [str(errno.EPERM), str(errno.EPERM)]
    assert {path.name for path in pinned.iterdir()} == PINS


def test_a_foreign_program_is_left_alone(
    lab: Lab, library: Library, bpffs: Path, tmp_path: Path
) -> None:
    host = lab.hosts[1]
    program = compile_pass(tmp_path)
    host.run("ip", "link", "set", host.ifname, "xdpgeneric", "obj", program, "sec", "xdp")
    with pytest.raises(RefusedError) as refused:
        attach(library, host)
    assert refused.value.errno == errno.EBUSY
    assert "stop its owner" in refused.value.strerror
    assert refusal(library, host, bpffs).errno == errno.ENOENT
    assert xdp_attached(host)
