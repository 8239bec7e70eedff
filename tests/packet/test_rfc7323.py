# SPDX-License-Identifier: Apache-2.0
"""RFC 7323: window scaling, timestamps, PAWS."""

import itertools

import pytest
from packet_rig import MODULUS, MS, CounterChanges, Rig, flags_of, options_of, with_data


@pytest.mark.parametrize("timestamps", [False, True])
@pytest.mark.parametrize("sack", [False, True])
@pytest.mark.parametrize("wscale", [None, 0, 7])
def test_only_offered_options_are_agreed(
    rig: Rig, timestamps: bool, sack: bool, wscale: int | None
) -> None:
    rig.listen()
    offer = {"timestamps": timestamps, "sack": sack}
    if wscale is not None:
        offer["wscale"] = wscale
    agreed = options_of(rig.send("S", ack=0, options=rig.syn_options(**offer))[0])
    assert ("Timestamp" in agreed) == timestamps
    assert ("SAckOK" in agreed) == sack
    assert ("WScale" in agreed) == (wscale is not None)


def test_the_syn_ack_echoes_the_timestamp_of_the_syn(rig: Rig) -> None:
    rig.listen()
    reply = rig.send("S", ack=0, options=rig.syn_options(timestamps=True))[0]
    assert options_of(reply)["Timestamp"][1] == rig.tsval


def test_the_newest_timestamp_in_order_is_echoed(rig: Rig) -> None:
    rig.open(timestamps=True)
    rig.tsval = 900
    rig.send_next(b"a")
    answers = rig.wait_tcp(100 * MS)
    assert options_of(answers[-1])["Timestamp"][1] == 900


def test_a_timestamp_out_of_order_is_not_echoed(rig: Rig) -> None:
    """Section 4.3: only a segment that advances the window updates TS.Recent."""
    rig.open(timestamps=True)
    rig.tsval = 900
    (answer,) = rig.send("PA", b"late", seq=rig.seq + 10)
    assert options_of(answer)["Timestamp"][1] == 500


def test_a_segment_with_an_old_timestamp_is_dropped_and_acknowledged(rig: Rig) -> None:
    rig.open(timestamps=True)
    rig.tsval = 900
    rig.send_next(b"a")
    rig.wait_tcp(100 * MS)
    rig.tsval = 800
    with CounterChanges(rig) as counters:
        answers = rig.send("PA", b"old")
    assert flags_of(answers) == ["A"]
    assert counters.changes == {"drop_tcp_paws": 1}


def test_a_timestamp_may_wrap(rig: Rig) -> None:
    rig.tsval = MODULUS - 3
    conn = rig.open(timestamps=True)
    for i in range(6):
        rig.tsval = (MODULUS - 3 + i) % MODULUS
        rig.send("PA", bytes([65 + i]), seq=rig.seq + i)
    assert conn.info()["bytes_received"] == 6


def test_a_segment_without_its_timestamp_is_dropped(rig: Rig) -> None:
    """Section 3.2."""
    rig.open(timestamps=True)
    with CounterChanges(rig) as counters:
        assert rig.send("PA", b"bare", options=[]) == []
    assert counters.changes == {"drop_tcp_paws": 1}


def test_a_rst_needs_no_timestamp(rig: Rig) -> None:
    conn = rig.open(timestamps=True)
    rig.send("R", options=[])
    assert conn.error == 104


@pytest.mark.parametrize(("offer", "scale"), [({}, 0), ({"wscale": 14}, 14), ({"wscale": 99}, 14)])
def test_the_window_of_a_syn_is_not_scaled(rig: Rig, offer: dict[str, int], scale: int) -> None:
    """Sections 2.2 and 2.3: without the option the scale is 0, and it is at most 14."""
    info = rig.open(window=1000, **offer).info()
    assert (info["snd_wscale"], info["rcv_wscale"] > 0) == (scale, bool(offer))


def test_our_timestamps_never_go_back(rig: Rig) -> None:
    conn = rig.open(timestamps=True)
    stamps = []
    for _ in range(20):
        stamps += [options_of(s)["Timestamp"][0] for s in with_data(rig.write(conn, b"x" * 10))]
        rig.ack += 10
        rig.send("A")
    steps = [(b - a) % MODULUS for a, b in itertools.pairwise(stamps)]
    assert all(step < MODULUS // 2 for step in steps)
