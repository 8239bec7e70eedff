# SPDX-License-Identifier: Apache-2.0
"""A pinned steering program beside the interface: two links, two programs and the device."""

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import steering_api
from netns_tools import Tools, inside, wait_until, xdp_attached
from steering_api import BESIDE, GENERIC, TCP, Library, RefusedError, Steering
from test_pins import OWN, PINS, PORT, absent, adopt, bpffs, refusal, replace_under_traffic, sent

from harp.lab import Host, Lab
from harp.lab.harpd import in_network

__all__ = ["bpffs"]  # a fixture
BOTH = PINS | {"side_program", "side_link", "mark_link"}


def attach(library: Library, host: Host) -> Steering:
    made: Steering = inside(host, lambda: library.attach(host.ifname, GENERIC | BESIDE))
    return made


@pytest.fixture
def keeper(bpffs: Path) -> Iterator[Path]:
    """The file that keeps the other end's namespace; nothing may be mounted there when it ends."""
    at = bpffs.with_name("bpf.eth0")
    yield at
    if at.exists():
        subprocess.run(["umount", at], check=False, stderr=subprocess.DEVNULL)
        at.unlink()


@pytest.fixture
def pinned(lab: Lab, library: Library, bpffs: Path, keeper: Path) -> Iterator[Path]:
    """What the second host's harpd would have pinned, nobody holding it."""
    steering = attach(library, lab.hosts[1])
    steering.pin(bpffs / "eth0")
    steering.detach()
    yield bpffs / "eth0"
    if keeper.exists():
        library.unpin(bpffs / "eth0")


def names(at: Path) -> set[str]:
    return {path.name for path in at.iterdir()}


def test_adopted_after_its_maker_was_killed(
    tools: Tools, lab: Lab, library: Library, bpffs: Path, keeper: Path
) -> None:
    host, at = lab.hosts[1], bpffs / "eth0"
    # In the machine's mount namespace: `ip netns exec` makes another, and mounts end with it.
    script = [sys.executable, steering_api.__file__, tools.build, at, host.ifname]
    command = in_network(host, [*script, str(GENERIC | BESIDE)])
    maker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    assert maker.stdout.readline() == "ready\n"
    assert names(at) == BOTH
    assert keeper.exists()
    maker.kill()
    maker.communicate()
    first = adopt(library, host, at)
    side = first.side()
    assert side > 0
    first.ports_set(TCP, PORT, PORT)
    first.address_set(OWN)
    assert sent(lab, first, 10) == 10
    first.detach()
    second = adopt(library, host, at)
    assert second.side() == side
    assert absent(second) == 10
    assert sent(lab, second, 10) == 10
    second.detach()
    library.unpin(at)
    assert not at.exists()
    assert not keeper.exists()
    wait_until(lambda: not xdp_attached(host), "detaching")
    assert "harp" not in host.run("ip", "link").replace("harp-", "")


def test_replaced_under_traffic_without_a_packet_that_missed_them(
    lab: Lab, library: Library, bpffs: Path, keeper: Path
) -> None:
    """Every packet comes to the socket or is counted as one that had none: none is lost between
    two programs."""
    host, at = lab.hosts[1], bpffs / "eth0"
    replace_under_traffic(lab, attach(library, host), at, BOTH)
    again = adopt(library, host, at)
    assert sent(lab, again, 10) == 10
    again.detach()
    library.unpin(at)


@pytest.mark.parametrize("which", ["program", "side_program"])
def test_a_replacement_that_was_cut_off_is_finished(
    lab: Lab, library: Library, pinned: Path, which: str
) -> None:
    host = lab.hosts[1]
    steering = adopt(library, host, pinned)
    (pinned / which).rename(pinned / "old")
    steering.replace()
    (pinned / which).rename(pinned / f"{which}_new")
    (pinned / "old").rename(pinned / which)
    steering.detach()
    again = adopt(library, host, pinned)
    assert names(pinned) == BOTH
    again.replace()
    assert names(pinned) == BOTH
    again.detach()


@pytest.mark.parametrize("name", sorted(BOTH))
def test_a_missing_pin_is_said(
    lab: Lab, library: Library, pinned: Path, keeper: Path, name: str
) -> None:
    (pinned / name).unlink()
    assert refusal(library, lab.hosts[1], pinned).errno == errno.ESTALE
    assert keeper.exists(), "refused is not removed"
    library.unpin(pinned)
    assert not pinned.exists()
    assert not keeper.exists()
    wait_until(lambda: not xdp_attached(lab.hosts[1]), "detaching")


@pytest.mark.parametrize("name", ["side_link", "side_program"])
def test_something_else_by_a_name_of_ours(
    lab: Lab, library: Library, pinned: Path, name: str
) -> None:
    (pinned / name).unlink()
    (pinned / name).mkdir()
    assert refusal(library, lab.hosts[1], pinned).errno == errno.ESTALE
    (pinned / name).rmdir()


def test_links_and_programs_in_each_others_place(lab: Lab, library: Library, pinned: Path) -> None:
    for one, other in (("link", "side_link"), ("program", "side_program")):
        for a, b in ((one, "swap"), (other, one), ("swap", other)):
            (pinned / a).rename(pinned / b)
        assert refusal(library, lab.hosts[1], pinned).errno == errno.ESTALE
        for a, b in ((one, "swap"), (other, one), ("swap", other)):
            (pinned / a).rename(pinned / b)
    adopt(library, lab.hosts[1], pinned).detach()


def test_side_program_over_other_maps(
    lab: Lab, library: Library, pinned: Path, bpffs: Path
) -> None:
    """It would give the packets to another host's sockets."""
    other = attach(library, lab.hosts[0])
    other.pin(bpffs / "other")
    other.detach()
    for name in ("side_link", "side_program"):
        (pinned / name).unlink()
        (bpffs / "other" / name).rename(pinned / name)
    assert refusal(library, lab.hosts[1], pinned).errno == errno.ESTALE
    library.unpin(bpffs / "other")


def test_a_device_that_is_gone(lab: Lab, library: Library, pinned: Path) -> None:
    host = lab.hosts[1]
    steering = adopt(library, host, pinned)
    assert steering.look() == ""
    name = f"harp{host.run('cat', f'/sys/class/net/{host.ifname}/ifindex').strip()}"
    host.run("ip", "link", "delete", "dev", name)
    with pytest.raises(RefusedError) as refused:
        steering.look()
    assert refused.value.errno == errno.ENOLINK
    assert refused.value.strerror == f"{host.ifname}: {name} was removed"
    steering.detach()
    error = refusal(library, host, pinned)
    assert error.errno == errno.ESTALE
    assert "the device beside the interface is gone" in error.strerror


def test_a_device_of_that_name_made_anew_is_another(
    lab: Lab, library: Library, pinned: Path
) -> None:
    host = lab.hosts[1]
    name = f"harp{host.run('cat', f'/sys/class/net/{host.ifname}/ifindex').strip()}"
    host.run("ip", "link", "delete", "dev", name)
    host.run("ip", "link", "add", name, "type", "veth", "peer", "name", "away")
    assert refusal(library, host, pinned).errno == errno.ESTALE
    library.unpin(pinned)
    assert name in host.run("ip", "link"), "it is somebody else's"


@pytest.mark.parametrize("what", ["nothing", "a file", "a text", "a link", "another namespace"])
def test_a_keeper_that_keeps_nothing_of_ours(
    lab: Lab, library: Library, pinned: Path, keeper: Path, tmp_path: Path, what: str
) -> None:
    """The device lives on, held by who adopted it before."""
    host = lab.hosts[1]
    holder = adopt(library, host, pinned)
    subprocess.run(["umount", keeper], check=True)
    if what == "nothing":
        keeper.unlink()
    elif what == "a text":
        keeper.write_text("precious")
    elif what == "a link":
        keeper.unlink()
        (tmp_path / "precious").touch()
        keeper.symlink_to(tmp_path / "precious")
    elif what == "another namespace":
        other = f"/run/netns/{lab.hosts[0].netns}"
        subprocess.run(["mount", "--bind", other, keeper], check=True)
    assert refusal(library, host, pinned).errno == errno.ESTALE
    before = lab.hosts[0].run("ip", "-o", "link")
    library.unpin(pinned)
    assert lab.hosts[0].run("ip", "-o", "link").count("\n") == before.count("\n")
    assert keeper.is_file() is (what in ("a text", "a link"))
    if what == "a text":
        assert keeper.read_text() == "precious"
    keeper.unlink(missing_ok=True)
    holder.detach()


def test_pins_are_not_overwritten(lab: Lab, library: Library, pinned: Path, keeper: Path) -> None:
    here = attach(library, lab.hosts[0])
    with pytest.raises(RefusedError) as refused:
        here.pin(pinned)
    assert refused.value.errno == errno.EEXIST
    # What was pinned is whole, and what could not be goes on unpinned.
    adopt(library, lab.hosts[1], pinned).detach()
    assert names(pinned) == BOTH
    assert here.look() == ""
    here.detach()
    wait_until(lambda: not xdp_attached(lab.hosts[0]), "detaching")


def test_a_pin_that_fails_keeps_nothing(lab: Lab, library: Library, bpffs: Path) -> None:
    """A name of ours is taken in the directory: the keeper goes again, the device does not."""
    at = bpffs / "eth0"
    at.mkdir()
    (at / "link").mkdir()
    steering = attach(library, lab.hosts[1])
    with pytest.raises(RefusedError) as refused:
        steering.pin(at)
    assert refused.value.errno == errno.EEXIST
    assert names(at) == {"link"}
    assert not bpffs.with_name("bpf.eth0").exists()
    assert steering.look() == ""
    (at / "link").rmdir()
    steering.pin(at)
    steering.detach()
    library.unpin(at)
