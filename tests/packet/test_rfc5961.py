# SPDX-License-Identifier: Apache-2.0
"""RFC 5961 and 1337: blind attacks on a connection."""

import pytest
from packet_rig import MS, SECOND, Rig, flags_of


@pytest.mark.parametrize("off", [70000, 2**20, 2**30])
def test_data_with_an_ack_below_the_largest_window_is_rejected(rig: Rig, off: int) -> None:
    """Section 5.2: an ACK must not be older than the peer's largest window (MAX.SND.WND)."""
    conn = rig.open()
    rig.send("PA", b"injected", ack=rig.ack - off)
    with pytest.raises(BlockingIOError):
        conn.recv()


@pytest.mark.parametrize("sent", [0, 3000])
def test_data_with_an_ack_before_our_first_byte_is_rejected(rig: Rig, sent: int) -> None:
    """For any window: no peer sends an ACK before the first byte."""
    conn = rig.open()
    first = rig.ack
    if sent:
        rig.write(conn, bytes(sent))
        rig.ack += sent
        rig.send("A")
    for off in (1, 2, 20000):
        rig.send("PA", b"injected", ack=first - off)
    assert conn.info()["bytes_received"] == 0
    rig.send("PA", b"from before what was acknowledged", ack=first)
    assert conn.info()["bytes_received"] == 33


def test_data_sent_before_our_fin_arrived_is_received(rig: Rig) -> None:
    conn = rig.open()
    conn.shutdown()
    (fin,) = rig.tcp(rig.poll())
    rig.send("A", ack=fin.seq + 1)
    rig.send("PA", b"sent before", ack=fin.seq)
    assert conn.recv() == b"sent before"


def test_rejected_segments_do_not_answer_keepalive(rig: Rig) -> None:
    """The segments are in the window, but acknowledge data that was never sent."""
    conn = rig.open()
    conn.set_options(keepalive_idle_ns=SECOND, keepalive_interval_ns=SECOND, keepalive_count=3)
    for _ in range(20):
        rig.wait_tcp(SECOND // 2)
        rig.send("A", ack=rig.ack + 1000)
    assert conn.error == 110


@pytest.mark.parametrize("behind", [1, 2, 20000])
def test_duplicate_acks_are_not_answered_in_a_loop(rig: Rig, behind: int) -> None:
    """A segment one byte below the window looks like a keepalive probe."""
    rig.open()
    answers = 0
    for _ in range(300):
        segment = rig.segment("A", seq=rig.seq - behind)
        answers += len(rig.inject(rig.frame(segment), after_ns=1000))
    assert 1 <= answers <= 20


def test_a_probe_is_answered_beyond_the_challenge_limit(rig: Rig) -> None:
    """An attacker that causes many challenge ACKs cannot suppress the answer to a probe."""
    rig.open()
    for i in range(100):
        rig.inject(rig.frame(rig.segment("R", seq=rig.seq + 1 + i)), after_ns=1000)
    for _ in range(20):
        probe = rig.frame(rig.segment("A", seq=rig.seq - 1))
        assert flags_of(rig.tcp(rig.inject(probe, after_ns=5 * MS))) == ["A"]


@pytest.mark.parametrize("off", [-1000, -1, 1, 2**30])
def test_a_forged_fin_does_not_extend_time_wait(rig: Rig, off: int) -> None:
    fin = rig.time_wait()
    rig.wait_tcp(50 * SECOND)
    rig.send("FA", seq=rig.seq + off, ack=fin.seq + 1)
    rig.wait_tcp(15 * SECOND)
    assert rig.stat("tcp_conns") == 0
