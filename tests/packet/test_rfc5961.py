# SPDX-License-Identifier: Apache-2.0
"""RFC 5961: blind attacks on a connection; RFC 1337."""

import pytest
from packet_rig import MS, SECOND, Counted, Rig, flags_of


def test_an_exact_rst_resets(rig: Rig) -> None:
    conn = rig.open()
    rig.says("R")
    assert conn.error == 104
    assert rig.stat("tcp_rst_in") == 1


@pytest.mark.parametrize("off", [1, 2, 100, 30000])
def test_a_rst_inside_the_window_is_challenged(rig: Rig, off: int) -> None:
    conn = rig.open()
    answers = rig.says("R", seq=rig.seq + off)
    assert flags_of(answers) == ["A"]
    assert (answers[0].seq, answers[0].ack) == (rig.ack, rig.seq)
    assert conn.state == "ESTABLISHED"


@pytest.mark.parametrize("off", [-1, -100, -100000, 2**30, 2**31])
def test_a_rst_outside_the_window_is_ignored(rig: Rig, off: int) -> None:
    conn = rig.open()
    assert rig.says("R", seq=rig.seq + off) == []
    assert conn.state == "ESTABLISHED"


def test_the_true_peer_resets_after_a_challenge(rig: Rig) -> None:
    conn = rig.open()
    (challenge,) = rig.says("R", seq=rig.seq + 10)
    rig.says("R", seq=challenge.ack)
    assert conn.error == 104


@pytest.mark.parametrize("off", [-100000, -1, 0, 10, 2**30])
def test_a_syn_in_a_connection_is_challenged_wherever_it_is(rig: Rig, off: int) -> None:
    conn = rig.open()
    answers = rig.says("S", seq=rig.seq + off, ack=0)
    assert flags_of(answers) in (["A"], [])
    assert conn.state == "ESTABLISHED"


def test_a_syn_ack_in_a_connection_is_challenged(rig: Rig) -> None:
    conn = rig.open()
    assert flags_of(rig.says("SA", seq=rig.seq + 5)) == ["A"]
    assert conn.state == "ESTABLISHED"


@pytest.mark.parametrize("off", [1, 1000, 2**20, 2**31 - 1])
def test_data_with_an_ack_of_the_future_is_not_taken(rig: Rig, off: int) -> None:
    conn = rig.open()
    rig.says("PA", b"injected", ack=rig.ack + off)
    with pytest.raises(BlockingIOError):
        conn.recv()


@pytest.mark.parametrize("off", [70000, 2**20, 2**30])
def test_data_with_an_ack_of_long_ago_is_not_taken(rig: Rig, off: int) -> None:
    """Section 5.2: no older than the largest window the peer has had."""
    conn = rig.open()
    rig.says("PA", b"injected", ack=rig.ack - off)
    with pytest.raises(BlockingIOError):
        conn.recv()


@pytest.mark.parametrize("sent", [0, 3000])
def test_data_with_an_ack_from_before_our_first_byte_is_not_taken(rig: Rig, sent: int) -> None:
    """However large the window was: nobody can have received it."""
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


def test_data_that_a_fin_of_ours_overtook_is_taken(rig: Rig) -> None:
    conn = rig.open()
    conn.shutdown()
    (fin,) = rig.tcp(rig.poll())
    rig.says("A", ack=fin.seq + 1)
    rig.says("PA", b"sent before", ack=fin.seq)
    assert conn.recv() == b"sent before"


def test_segments_that_are_not_believed_keep_no_dead_peer_alive(rig: Rig) -> None:
    """Inside the window, and acknowledging what was never sent."""
    conn = rig.open()
    conn.set_options(keepalive_idle_ns=SECOND, keepalive_interval_ns=SECOND, keepalive_count=3)
    for _ in range(20):
        rig.waits(SECOND // 2)
        rig.says("A", ack=rig.ack + 1000)
    assert conn.error == 110


def test_the_rate_of_challenge_acks_is_limited(rig: Rig) -> None:
    rig.open()
    answers = 0
    for i in range(500):
        answers += len(rig.raw(rig.frame(rig.segment("R", seq=rig.seq + 1 + i)), after_ns=1000))
    assert 1 <= answers <= 20
    assert rig.stat("tcp_challenge_acks") == answers


def test_challenges_come_again_after_a_while(rig: Rig) -> None:
    rig.open()
    for i in range(100):
        rig.raw(rig.frame(rig.segment("R", seq=rig.seq + 1 + i)), after_ns=1000)
    rig.waits(3 * SECOND)
    assert flags_of(rig.says("R", seq=rig.seq + 10)) == ["A"]


def test_a_flood_on_one_connection_silences_no_other(rig: Rig) -> None:
    """CVE-2016-5696: a budget that all share tells an attacker about the others."""
    rig.open()
    seq, ack = rig.seq, rig.ack
    rig.sport, rig.seq = 40001, 5000
    rig.open()
    for i in range(300):
        rig.raw(rig.frame(rig.segment("R", seq=rig.seq + 1 + i)), after_ns=1000)
    rig.sport, rig.seq, rig.ack = 40000, seq, ack
    assert flags_of(rig.says("R", seq=rig.seq + 10)) == ["A"]


@pytest.mark.parametrize("behind", [1, 2, 20000])
def test_two_acks_do_not_play_ping_pong(rig: Rig, behind: int) -> None:
    """One byte behind it is what a probe would be."""
    rig.open()
    answers = 0
    for _ in range(300):
        segment = rig.segment("A", seq=rig.seq - behind)
        answers += len(rig.raw(rig.frame(segment), after_ns=1000))
    assert 1 <= answers <= 20


def test_what_a_timer_probes_for_is_answered(rig: Rig) -> None:
    """However many challenges a stranger has had us send."""
    rig.open()
    for i in range(100):
        rig.raw(rig.frame(rig.segment("R", seq=rig.seq + 1 + i)), after_ns=1000)
    for _ in range(20):
        probe = rig.frame(rig.segment("A", seq=rig.seq - 1))
        assert flags_of(rig.tcp(rig.raw(probe, after_ns=5 * MS))) == ["A"]


def test_a_rst_does_not_cut_time_wait_short(rig: Rig) -> None:
    """RFC 1337: at best an exact one may, and nothing else does."""
    rig.time_wait()
    rig.says("R", seq=rig.seq + 100)
    rig.says("R", seq=rig.seq - 100)
    assert rig.stat("tcp_conns") == 1


@pytest.mark.parametrize("off", [-1000, -1, 1, 2**30])
def test_a_fin_that_is_not_the_peers_does_not_prolong_time_wait(rig: Rig, off: int) -> None:
    fin = rig.time_wait()
    rig.waits(50 * SECOND)
    rig.says("FA", seq=rig.seq + off, ack=fin.seq + 1)
    rig.waits(15 * SECOND)
    assert rig.stat("tcp_conns") == 0


def test_a_fin_outside_the_window_closes_nothing(rig: Rig) -> None:
    conn = rig.open()
    rig.says("FA", seq=rig.seq + 2**30)
    rig.says("FA", seq=rig.seq - 1000)
    assert conn.state == "ESTABLISHED"


def test_random_segments_of_other_hosts_change_nothing(rig: Rig) -> None:
    conn = rig.open()
    with Counted(rig) as counted:
        for port in range(1, 50):
            rig.says("PA", b"x", sport=port)
    assert counted.moved == {"drop_tcp_no_flow": 49}
    rig.poll(MS)
    with pytest.raises(BlockingIOError):
        conn.recv()
