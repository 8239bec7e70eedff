# SPDX-License-Identifier: Apache-2.0
"""An attacker on the path that resets lanes and injects bytes into them. The stream continues over
other lanes, and every byte is right. Injected bytes may cause an error, which is named."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from lanes_reset import Resetter, build
from lanes_rig import MIB, counters, options, railed, shaped, wait_for_rails

from harp.bench.streams import SINK, SOURCE, Stream
from harp.errors import HarpError
from harp.lab import Lab
from harp.lab.rails import Rails

SEED = 20261122
FEW = {"HARP_LANES": "2", "HARP_KERNEL_LANES": "2", "HARP_RAILS": "all"}


@pytest.fixture(scope="module", params=[False, True], ids=["IPv4", "IPv6"])
def lab(request: pytest.FixtureRequest, need_root: None) -> Iterator[Lab]:
    with railed(2, ipv6=request.param) as made:
        shaped(made)
        yield made


@pytest.mark.sample("IPv4-xdp", "IPv6-auto", "IPv6-kernel")
@pytest.mark.parametrize("path", ["xdp", "kernel", "auto"])
def test_a_lane_that_is_reset_is_no_error(lab: Lab, path: str) -> None:
    """The right RST at the sender, until a lane has ended, five times: what it carried goes on
    others."""
    rails = Rails(lab)
    with Stream(lab, options(path, **FEW)) as stream:
        wait_for_rails(stream, rails, [0, 1])
        for turn in range(5):
            ended = stream.ranks[SOURCE].log().count("has ended")
            with Resetter(lab, turn % 2) as attacker:
                while stream.ranks[SOURCE].log().count("has ended") == ended:
                    stream.flow(MIB // 16)
                    attacker.reset_sender(SOURCE)
            stream.flow(MIB)
        wait_for_rails(stream, rails, [0, 1])
        stream.finish()


@pytest.mark.sample("IPv6")
def test_sealed_lanes_are_reset_and_come_back(lab: Lab, tmp_path: Path) -> None:
    """Each lane that is opened anew has keys of its own: what the old one had under way is sealed
    again, and nobody takes anything for forged. The pre-shared key stays the one that the job began
    with, whatever is in the file by then (docs/security.md)."""
    keys = [tmp_path / "receiver", tmp_path / "sender"]
    for key in keys:
        key.write_text("5a" * 32 + "\n")
        key.chmod(0o600)
    sealed = {**FEW, "HARP_ENCRYPT": "aes-256-gcm", "HARP_KEY_FILE": str(keys[0])}
    rails = Rails(lab)
    with Stream(lab, options("auto", sender={"HARP_KEY_FILE": str(keys[1])}, **sealed)) as stream:
        wait_for_rails(stream, rails, [0, 1])
        keys[0].write_text("a5" * 32 + "\n")
        for turn in range(4):
            with Resetter(lab, turn % 2) as attacker:
                stream.flow(MIB // 4)
                attacker.reset_all()
            stream.flow(MIB)
        wait_for_rails(stream, rails, [0, 1])
        assert counters(stream, SOURCE)["lanes_replaced"] > 0
        stream.finish()
        for rank in stream.ranks:
            assert "encrypted" in rank.log()
            assert "failed authentication" not in rank.log()


@pytest.mark.sample("IPv6-xdp", "IPv4-kernel", "IPv6-auto")
@pytest.mark.parametrize("path", ["xdp", "kernel", "auto"])
def test_every_lane_reset_at_once_comes_back(lab: Lab, path: str) -> None:
    """The connector has one more try when the last lane has died; so nothing is lost."""
    rails = Rails(lab)
    with Stream(lab, options(path, **FEW)) as stream:
        wait_for_rails(stream, rails, [0, 1])
        for _ in range(3):
            with Resetter(lab, 0) as one, Resetter(lab, 1) as other:
                stream.flow(MIB // 4)
                one.reset_all()
                other.reset_all()
            stream.flow(MIB)
        stream.finish()


@pytest.mark.sample("IPv6-xdp", "IPv4-kernel")
@pytest.mark.parametrize("path", ["xdp", "kernel"])
def test_segments_outside_the_window_change_nothing(lab: Lab, path: str) -> None:
    """Copies of what passes with a bit turned over, wrong numbers, another's flags."""
    rails, rng = Rails(lab), random.Random(SEED)
    with Stream(lab, options(path, **FEW)) as stream:
        wait_for_rails(stream, rails, [0, 1])
        for turn in range(10):
            with Resetter(lab, turn % 2) as attacker:
                stream.flow(MIB // 8)
                for host in (SINK, SOURCE):
                    for seen in attacker.hear(host)[-40:]:
                        far = (seen.end + rng.choice((1 << 20, 1 << 30, -(1 << 25)))) % 2**32
                        for flags in (0x10, 0x18, 0x14, 0x11, 0x02):
                            attacker.say(1 - host, build(seen, flags, rng.randbytes(40), far))
                        frame = bytearray(build(seen, 0x18, rng.randbytes(100)))
                        frame[rng.randrange(34, len(frame))] ^= 1 << rng.randrange(8)
                        attacker.say(1 - host, bytes(frame))
        wait_for_rails(stream, rails, [0, 1])
        stream.finish()


@pytest.mark.parametrize("path", ["xdp", "kernel"])
def test_injected_bytes_end_only_their_lane(lab: Lab, path: str) -> None:
    """An attacker that sees sequence numbers can write into a TCP stream, but not make a record.

    The lane is broken, and the comm fails with a word about it or goes on without it; what has been
    received is right either way.
    """
    rails, rng = Rails(lab), random.Random(SEED)
    with Stream(lab, options(path, **FEW)) as stream:
        wait_for_rails(stream, rails, [0, 1])
        with Resetter(lab, 0) as attacker:
            stream.flow(MIB // 8)
            for seen in attacker.hear(SINK):
                if not seen.payload:  # an ACK: its direction stands still, the bytes come next
                    attacker.say(SOURCE, build(seen, 0x18, rng.randbytes(200)))
        try:
            stream.flow(2 * MIB)
            stream.finish()
        except HarpError:
            said = stream.ranks[SINK].log() + stream.ranks[SOURCE].log()
            assert "ncclRemoteError" in said, said
            assert "arrived wrong" not in said, said
