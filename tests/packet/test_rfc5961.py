# SPDX-License-Identifier: Apache-2.0
"""RFC 5961: blind attacks on a connection; RFC 1337."""

import pytest
from packet_rig import MS, SECOND, Rig, flags_of


@pytest.mark.parametrize("off", [70000, 2**20, 2**30])
def test_data_with_an_ack_below_the_largest_window_is_rejected(rig: Rig, off: int) -> None:
    """Section 5.2: no older than the largest window the peer has had."""
    conn = rig.open()
    rig.says("PA", b"injected", ack=rig.ack - off)
    with pytest.raises(BlockingIOError):
        conn.recv()


@pytest.mark.parametrize("sent", [0, 3000])
def test_data_with_an_ack_before_our_first_byte_is_rejected(rig: Rig, sent: int) -> None:
    """Whatever the window was: no peer can have received it."""
    conn = rig.open()
    first = rig.ack
    if sent:
        rig.sends(conn, bytes(sent))
        rig.ack += sent
        rig.says("A")
    for off in (1, 2, 20000):
        rig.says("PA", b"injected", ack=first - off)
    assert conn.info()["bytes_received"] == 0
    rig.says("PA", b"from before what was acknowledged", ack=first)
    assert conn.info()["bytes_received"] == 33


def test_data_sent_before_our_fin_arrived_is_received(rig: Rig) -> None:
    conn = rig.open()
    conn.shutdown()
    (fin,) = rig.tcp(rig.poll())
    rig.says("A", ack=fin.seq + 1)
    rig.says("PA", b"sent before", ack=fin.seq)
    assert conn.recv() == b"sent before"


def test_rejected_segments_do_not_answer_keepalive(rig: Rig) -> None:
    """Inside the window, and acknowledging what was never sent."""
    conn = rig.open()
    conn.set_options(keepalive_idle_ns=SECOND, keepalive_interval_ns=SECOND, keepalive_count=3)
    for _ in range(20):
        rig.waits(SECOND // 2)
        rig.says("A", ack=rig.ack + 1000)
    assert conn.error == 110


@pytest.mark.parametrize("behind", [1, 2, 20000])
def test_duplicate_acks_are_not_answered_in_a_loop(rig: Rig, behind: int) -> None:
    """One byte behind it is what a probe would be."""
    rig.open()
    answers = 0
    for _ in range(300):
        segment = rig.segment("A", seq=rig.seq - behind)
        answers += len(rig.raw(rig.frame(segment), after_ns=1000))
    assert 1 <= answers <= 20


def test_a_probe_is_answered_beyond_the_challenge_limit(rig: Rig) -> None:
    """However many challenges a stranger has had us send."""
    rig.open()
    for i in range(100):
        rig.raw(rig.frame(rig.segment("R", seq=rig.seq + 1 + i)), after_ns=1000)
    for _ in range(20):
        probe = rig.frame(rig.segment("A", seq=rig.seq - 1))
        assert flags_of(rig.tcp(rig.raw(probe, after_ns=5 * MS))) == ["A"]


@pytest.mark.parametrize("off", [-1000, -1, 1, 2**30])
def test_a_forged_fin_does_not_extend_time_wait(rig: Rig, off: int) -> None:
    fin = rig.time_wait()
    rig.waits(50 * SECOND)
    rig.says("FA", seq=rig.seq + off, ack=fin.seq + 1)
    rig.waits(15 * SECOND)
    assert rig.stat("tcp_conns") == 0
