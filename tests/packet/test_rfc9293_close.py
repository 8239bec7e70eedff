# SPDX-License-Identifier: Apache-2.0
"""RFC 9293: closing (section 3.6), TIME-WAIT, aborts; also RFC 1122, 1337, 2525, 6191."""

import pytest
from packet_rig import MODULUS, MS, PEER_PORT, SECOND, Rig, data_of, flags_of, with_data


def test_a_fin_ahead_of_missing_bytes_waits_for_them(rig: Rig) -> None:
    conn = rig.open()
    rig.send("FA", seq=rig.seq + 5)
    assert conn.state == "ESTABLISHED"
    rig.send("PA", b"bytes")
    assert conn.recv() == b"bytes"
    assert conn.recv() == b""
    assert conn.state == "CLOSE-WAIT"


def test_close_with_unread_bytes_is_a_rst(rig: Rig) -> None:
    """RFC 2525 section 2.17."""
    conn = rig.open()
    rig.send_next(b"unread")
    conn.close()
    assert any("R" in flags for flags in flags_of(rig.tcp(rig.poll())))
    assert rig.stat("tcp_conns") == 0


def test_a_new_syn_takes_over_time_wait_with_a_greater_isn(rig: Rig) -> None:
    """RFC 9293 section 3.10.7.4 and RFC 6191."""
    rig.time_wait()
    answers = rig.send("S", seq=rig.seq + 1000000, ack=0)
    assert flags_of(answers) == ["SA"]
    assert answers[0].ack == rig.seq + 1000001


def test_a_syn_to_a_full_accept_queue_keeps_time_wait(rig: Rig) -> None:
    """The SYN is dropped, so no new incarnation replaces the old one."""
    rig.listen(backlog=1)
    fin = rig.time_wait()
    first = rig.send("S", sport=PEER_PORT + 1, ack=0)[0]
    rig.send("A", sport=PEER_PORT + 1, seq=rig.seq + 1, ack=first.seq + 1)  # fills the queue
    assert rig.send("S", seq=rig.seq + 1000000, ack=0) == []
    assert rig.stat("drop_tcp_backlog") == 1
    answers = rig.send("FA", ack=fin.seq + 1)
    assert flags_of(answers) == ["A"], "without TIME-WAIT it would be a RST"
    rig.accept()
    assert flags_of(rig.send("S", seq=rig.seq + 1000000, ack=0)) == ["SA"]


def test_a_syn_to_a_full_backlog_takes_over_time_wait_without_a_cookie(rig: Rig) -> None:
    """A cookie may be less than the sequence numbers of the old incarnation."""
    rig.listen(backlog=1)
    fin = rig.time_wait()
    assert flags_of(rig.send("S", sport=PEER_PORT + 1, ack=0)) == ["SA"]  # fills the backlog
    answer = rig.send("S", seq=rig.seq + 1000000, ack=0)[0]
    assert rig.stat("tcp_cookies_sent") == 0
    assert 0 < (answer.seq - fin.seq) % MODULUS < MODULUS // 2


def test_an_old_syn_does_not_take_over_time_wait(rig: Rig) -> None:
    rig.time_wait()
    assert "SA" not in flags_of(rig.send("S", seq=rig.seq - 5000, ack=0))


def test_a_new_timestamp_lets_a_syn_take_over_time_wait(rig: Rig) -> None:
    rig.time_wait(timestamps=True)
    rig.tsval += 5000
    answers = rig.send("S", seq=rig.seq - 5000, ack=0, options=rig.syn_options(timestamps=True))
    assert flags_of(answers) == ["SA"]


def test_a_retransmitted_fin_restarts_two_msl(rig: Rig) -> None:
    fin = rig.time_wait()
    rig.wait_tcp(50 * SECOND)
    rig.send("FA", ack=fin.seq + 1)
    rig.wait_tcp(50 * SECOND)
    assert rig.stat("tcp_conns") == 1
    rig.wait_tcp(20 * SECOND)
    assert rig.stat("tcp_conns") == 0


def test_an_answered_keepalive_keeps_the_connection(rig: Rig) -> None:
    conn = rig.open()
    conn.set_options(keepalive_idle_ns=SECOND, keepalive_interval_ns=SECOND, keepalive_count=3)
    for _ in range(20):
        for probe in rig.wait_tcp(SECOND + 10 * MS):
            assert probe.seq == rig.ack - 1, "RFC 9293 section 3.8.4"
            rig.send("A")
    assert conn.error == 0


def test_keepalive_count_is_not_limited_to_a_byte(rig: Rig) -> None:
    conn = rig.open()
    conn.set_options(keepalive_idle_ns=SECOND, keepalive_interval_ns=SECOND, keepalive_count=300)
    segments = rig.wait_tcp(299 * SECOND)
    assert conn.error == 0
    segments += rig.wait_tcp(5 * SECOND)
    assert conn.error == 110
    assert flags_of(segments) == ["A"] * 300 + ["RA"]


@pytest.mark.parametrize(("idle_ns", "interval_ns"), [(2**64 - 1, 0), (SECOND, 2**64 - 1)])
def test_the_largest_keepalive_interval_is_never(rig: Rig, idle_ns: int, interval_ns: int) -> None:
    conn = rig.open()
    conn.set_options(
        keepalive_idle_ns=idle_ns, keepalive_interval_ns=interval_ns, keepalive_count=1
    )
    assert len(rig.wait_tcp(10 * SECOND)) <= 1
    assert conn.error == 0


@pytest.mark.parametrize("sends", [False, True], ids=["silent", "sends"])
def test_the_user_timeout_is_for_data_without_ack(rig: Rig, sends: bool) -> None:
    """RFC 5482 section 3: other segments of the peer do not extend the timeout."""
    conn = rig.open(listen={"user_timeout_ns": 5 * SECOND})
    rig.wait_tcp(20 * SECOND)
    conn.send(b"anybody?")
    for _ in range(10):
        assert conn.error == 0
        if sends:
            rig.send_next(b"x")
        rig.wait_tcp(SECOND // 2 - MS)
    rig.wait_tcp(SECOND)
    assert conn.error == 110


def test_after_minutes_without_a_poll_data_is_retransmitted_before_the_user_timeout(
    rig: Rig,
) -> None:
    """Ten minutes without a poll do not count as silence of the peer."""
    conn = rig.open(listen={"user_timeout_ns": 5 * SECOND})
    conn.send(b"anybody?")
    rig.poll()
    retransmitted = rig.tcp(rig.poll(600 * SECOND))
    assert [data_of(segment) for segment in retransmitted] == [b"anybody?"]
    rig.wait_tcp(4 * SECOND)
    assert conn.error == 0
    rig.wait_tcp(2 * SECOND)
    assert conn.error == 110


def test_a_reset_frees_the_send_queue_and_is_counted(rig: Rig) -> None:
    conn = rig.open()
    with_data(rig.write(conn, bytes(5000)))
    rig.send("R")
    assert conn.error == 104
    assert rig.stat("frames_tcp_tx") == 0
    assert rig.stat("tcp_estab_resets") == 1
