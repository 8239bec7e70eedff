# SPDX-License-Identifier: Apache-2.0
"""Random histories of configurations, crashes and foreign changes leave the host unchanged."""

import contextlib
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from fake_host import FakeHost
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.config import NicConfig
from harp.nicprep import Entry, Undo, prepare, restore

PORTS = "proc/sys/net/ipv4/ip_local_reserved_ports"
SPANS = [(61000, 65535), (62000, 63000), (60000, 61500)]
OFFLOAD = st.sampled_from(["keep", "on", "off"])

nic_configs = st.lists(
    st.builds(
        NicConfig,
        ifname=st.just("eth1"),
        ports=st.sampled_from(SPANS),
        queues=st.sampled_from([0, 2, 4, 8, 64]),
        rx_ring=st.sampled_from([0, 512, 1024, 65536]),
        tx_ring=st.sampled_from([0, 64, 512]),
        coalesce=st.sampled_from(["keep", "low", "adaptive", "set"]),
        coalesce_rx_us=st.sampled_from([8, 50]),
        lro=OFFLOAD,
        gro=OFFLOAD,
        gro_hw=OFFLOAD,  # eth1 does not have it
        irq_affinity=st.sampled_from(["keep", "local", "cores"]),
        irq_cores=st.just((1, 2)),
    ),
    max_size=1,
)
PAGES = st.sampled_from([0, 8, 64])


class Died(BaseException):
    """The death of harpd."""


def run_harpd(fake: FakeHost, nics: list[NicConfig], pages: int, undo: Undo, death: int) -> Undo:
    """Run harpd, which dies at its `death`-th record; return the last undo list on its disk."""
    disk = [undo]

    def record(changes: Undo) -> None:
        entries = json.loads(json.dumps(asdict(changes)))["entries"]
        disk.append(Undo([Entry(**entry) for entry in entries]))
        if len(disk) == death:
            raise Died

    with contextlib.suppress(Died):
        prepare(nics, pages, fake.host, record, undo)
    return disk[-1]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.tuples(nic_configs, PAGES, st.integers(0, 20)), min_size=1, max_size=4))
def test_any_history_leaves_the_host_unchanged(
    runs: list[tuple[list[NicConfig], int, int]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        fake = FakeHost(Path(folder))
        fake.write(PORTS, "5000,61003")
        before, undo = fake.snapshot(), Undo()
        for nics, pages, death in runs:
            undo = run_harpd(fake, nics, pages, undo, death)
        assert restore(undo, fake.host).undo == Undo()
        assert fake.snapshot() == before


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(nic_configs, PAGES), min_size=1, max_size=3),
    st.sampled_from([("rings", "rx", 777), ("coalesce", "rx_usecs", 33), ("rings", "tx", 99)]),
    st.integers(0, 3),
)
def test_a_foreign_value_survives_until_the_next_request(
    runs: list[tuple[list[NicConfig], int]], change: tuple[str, str, int], position: int
) -> None:
    part, name, value = change
    with tempfile.TemporaryDirectory() as folder:
        fake = FakeHost(Path(folder))
        before, undo = fake.snapshot(), Undo()
        for number, (nics, pages) in enumerate([*runs, runs[-1]]):
            if number == position:
                fake.nic.parts[part][name] = value
            if number < len(runs):
                undo = prepare(nics, pages, fake.host, undo=undo).undo
        assert restore(undo, fake.host).undo == Undo()
        after = fake.snapshot()
        expected = value if position <= len(runs) else before[0][part][name]
        assert after[0][part][name] == expected
        after[0][part][name] = before[0][part][name]
        assert after == before
