# SPDX-License-Identifier: Apache-2.0
"""A pinned XDP program outlives its process; the next process adopts and replaces it."""

import ctypes
import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from netns_tools import (
    Tools,
    adopt,
    attach,
    inside,
    own,
    serve_pin,
    wait_until,
    xdp_attached,
)
from test_steering import V4, ethernet_of, send_frames

from harp import _host
from harp._host import Steering
from harp.lab import Host, Lab

PORT = 61000
PINS = {
    *("xsks", "ports", "addresses", "verdicts", "arrivals", "layout"),
    *("restricted", "sources_v4", "sources_v6"),
    *("program", "link"),
}


def names(pins: Path) -> set[str]:
    return {path.name for path in pins.iterdir()}


def refusal(host: Host, pins: Path) -> OSError:
    """Return the error of an adoption, which is one line that names the interface."""
    with pytest.raises(OSError, match=rf"\] {host.ifname}: [^\n]*$") as error:
        adopt(host, pins)
    return error.value


def send(lab: Lab, steering: Steering, count: int) -> int:
    """Send `count` frames to a port of HARP. Return how many of them the program has counted."""
    frame = bytes(ethernet_of(lab) / V4.to_us(PORT))
    before = absent(steering)
    send_frames(lab, [frame] * count)
    return absent(steering) - before


def absent(steering: Steering) -> int:
    """Return the count of HARP's packets without a socket, such as the frames of these tests."""
    return steering.verdicts()["absent"]


def test_a_program_is_adopted_after_its_process_was_killed(
    tools: Tools, lab: Lab, bpffs: Path
) -> None:
    host, pins = lab.hosts[1], bpffs / "eth0"
    process = serve_pin(tools, host, pins)
    assert names(pins) == PINS
    process.kill()
    process.communicate()
    assert xdp_attached(host)
    first = adopt(host, pins)
    assert first.why.startswith(f"{host.ifname}: generic XDP (taken over): the kernel copies all")
    own(first)
    assert send(lab, first, 10) == 10
    # The next adoption finds the same counters.
    first.close()
    assert xdp_attached(host)
    second = adopt(host, pins)
    assert absent(second) == 10
    assert send(lab, second, 10) == 10
    _host.unpin(str(pins))
    assert not pins.exists()
    assert xdp_attached(host), "an open program stays attached"
    second.close()
    wait_until(lambda: not xdp_attached(host), "detaching")


def test_a_replacement_under_traffic_misses_no_packet(lab: Lab, bpffs: Path) -> None:
    host, pins = lab.hosts[1], bpffs / "eth0"
    steering = attach(host)
    own(steering)
    steering.pin(str(pins))
    done, replacements = threading.Event(), 0

    def replace() -> None:
        nonlocal replacements
        while not done.is_set():
            steering.replace()
            replacements += 1

    thread = threading.Thread(target=lambda: inside(host, replace))
    thread.start()
    try:
        for _ in range(20):  # replacements are slow on a busy machine
            assert send(lab, steering, 100_000) == 100_000
            if replacements > 5:
                break
    finally:
        done.set()
        thread.join()
    assert replacements > 5
    assert names(pins) == PINS
    steering.close()
    adopted = adopt(host, pins)
    assert send(lab, adopted, 10) == 10
    _host.unpin(str(pins))


def pin(lab: Lab, bpffs: Path) -> Path:
    """Pin a program on the second host as harpd does, and close its descriptors."""
    pins = bpffs / "eth0"
    steering = attach(lab.hosts[1])
    steering.pin(str(pins))
    steering.close()
    return pins


@pytest.fixture
def pinned(lab: Lab, bpffs: Path) -> Iterator[Path]:
    """Pins of a program on the second host that no process holds open."""
    pins = pin(lab, bpffs)
    yield pins
    if pins.exists():
        _host.unpin(str(pins))


def test_an_interrupted_replacement_is_finished(lab: Lab, pinned: Path) -> None:
    """The process died after it changed the link and before it renamed the new program's pin."""
    host = lab.hosts[1]
    steering = adopt(host, pinned)
    (pinned / "program").rename(pinned / "old")
    steering.replace()
    (pinned / "program").rename(pinned / "program_new")
    (pinned / "old").rename(pinned / "program")
    steering.close()
    adopted = adopt(host, pinned)
    assert names(pinned) == PINS
    adopted.replace()


def set_layout(pins: Path, number: int) -> None:
    libbpf = ctypes.CDLL("libbpf.so.1")
    fd = libbpf.bpf_obj_get(bytes(pins / "layout"))
    assert fd >= 0
    zero, layout = ctypes.c_uint32(0), ctypes.c_uint32(number)
    assert libbpf.bpf_map_update_elem(fd, ctypes.byref(zero), ctypes.byref(layout), 0) == 0
    os.close(fd)


def older_layout(pins: Path) -> None:
    """Change the pins to those of the previous version, which has no map of arrivals."""
    (pins / "arrivals").unlink()
    set_layout(pins, 1)


STALE: dict[str, tuple[Callable[[Path], None], str]] = {
    "layout 0": (lambda pins: set_layout(pins, 0), "layout 0"),
    "older layout": (older_layout, r"by another version of HARP \(layout 1, ours is 3\)"),
}


@pytest.mark.parametrize("name", STALE)
def test_pins_of_another_version_are_stale(lab: Lab, pinned: Path, name: str) -> None:
    change, message = STALE[name]
    change(pinned)
    error = refusal(lab.hosts[1], pinned)
    assert error.errno == errno.ESTALE
    with pytest.raises(OSError, match=message):
        raise error
    assert xdp_attached(lab.hosts[1]), "a refused program stays attached"


def test_maps_of_another_program_are_stale(lab: Lab, pinned: Path, bpffs: Path) -> None:
    """A map has the right type and size, but the pinned program does not use it."""
    other = attach(lab.hosts[0])
    other.pin(str(bpffs / "other"))
    other.close()
    (pinned / "ports").unlink()
    (bpffs / "other" / "ports").rename(pinned / "ports")
    assert refusal(lab.hosts[1], pinned).errno == errno.ESTALE
    _host.unpin(str(bpffs / "other"))


def test_pins_of_a_recreated_interface_are_not_adopted(lab: Lab, pinned: Path) -> None:
    here, there = lab.hosts
    assert refusal(here, pinned).errno == errno.ESTALE
    there.run("ip", "link", "delete", there.ifname)
    there.run("ip", "link", "add", there.ifname, "type", "veth", "peer", "name", "other")
    error = refusal(there, pinned)
    assert error.errno == errno.ESTALE
    assert "not attached to this interface" in str(error)


def test_incomplete_pins_are_refused_and_removed(lab: Lab, bpffs: Path) -> None:
    for name in sorted(PINS):
        pinned = pin(lab, bpffs)
        (pinned / name).unlink()
        assert refusal(lab.hosts[1], pinned).errno == errno.ESTALE, name
        _host.unpin(str(pinned))
        assert not pinned.exists(), name
        wait_until(lambda: not xdp_attached(lab.hosts[1]), "detaching")


def test_pins_are_not_overwritten(lab: Lab, pinned: Path) -> None:
    here = attach(lab.hosts[0])
    with pytest.raises(OSError, match="pinning in") as error:
        here.pin(str(pinned))
    assert error.value.errno == errno.EEXIST
    adopt(lab.hosts[1], pinned).close()
    assert names(pinned) == PINS


def test_missing_pins_are_an_error(lab: Lab, bpffs: Path, tmp_path: Path) -> None:
    for path in (bpffs, bpffs / "nosuch", tmp_path, tmp_path / "nosuch"):
        assert refusal(lab.hosts[1], path).errno == errno.ENOENT
        assert not _host.unpin(str(path))
        bpffs.mkdir(exist_ok=True)


def test_pinning_needs_a_bpffs(lab: Lab, tmp_path: Path, bpffs: Path) -> None:
    steering = attach(lab.hosts[1])
    for path, expected in (
        (tmp_path, errno.EOPNOTSUPP),
        (tmp_path / "made", errno.EOPNOTSUPP),
        (tmp_path / "no" / "such", errno.ENOENT),
        (bpffs / "eth0.5", errno.EINVAL),
    ):
        with pytest.raises(OSError, match="pinning in") as error:
            steering.pin(str(path))
        assert error.value.errno == expected
    assert not (tmp_path / "made").exists()
    # After these failures the program can still be pinned, once.
    steering.pin(str(bpffs / "eth0"))
    with pytest.raises(OSError, match="pinning in") as error:
        steering.pin(str(bpffs / "again"))
    assert error.value.errno == errno.EBUSY
    _host.unpin(str(bpffs / "eth0"))
    steering.close()
    wait_until(lambda: not xdp_attached(lab.hosts[1]), "detaching")
