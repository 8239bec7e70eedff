# SPDX-License-Identifier: Apache-2.0
"""Changes are recorded before they are applied, and restored after any failure."""

import errno
import json
from dataclasses import asdict

import pytest
from fake_host import FakeHost, nic

from harp.nicprep import Entry, Undo, prepare, restore
from harp.nicprep.plan import plan, plan_host
from harp.nicprep.undo import Result, apply

EVERYTHING = nic(
    queues=4,
    rx_ring=4096,
    tx_ring=1024,
    coalesce="set",
    lro="off",
    irq_affinity="local",
)
HUGE_PAGES = 64
PORTS = "proc/sys/net/ipv4/ip_local_reserved_ports"
PAGES = "sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages"


def outcomes(result: Result) -> dict[str, tuple[str, str]]:
    return {outcome.name: (outcome.status, outcome.text) for outcome in result.outcomes}


class State:
    """A state file. After a crash, it has the last record."""

    def __init__(self, fail_at: int = 0) -> None:
        self.records: list[str] = []
        self.fail_at = fail_at

    def record(self, undo: Undo) -> None:
        self.records.append(json.dumps(asdict(undo)))
        if self.fail_at and len(self.records) >= self.fail_at:
            raise OSError(errno.ENOSPC, "No space left on device")

    def read(self) -> Undo:
        state = json.loads(self.records[-1])
        return Undo([Entry(**entry) for entry in state["entries"]])


def test_everything_is_changed_and_restored(fake: FakeHost) -> None:
    before, state = fake.snapshot(), State()
    result = prepare([EVERYTHING], HUGE_PAGES, fake.host, state.record)
    assert {outcome.status for outcome in result.outcomes} == {"done"}
    assert fake.nic.parts["channels"]["combined"] == 4
    assert fake.nic.parts["rings"]["rx"] == 4096
    assert fake.nic.parts["coalesce"]["adaptive_rx"] == 0
    assert fake.nic.parts["features"]["rx-lro"] is False
    assert fake.read("proc/irq/41/smp_affinity_list") == "5"
    assert fake.read("proc/irq/38/smp_affinity_list") == "0-7", "not of a queue"
    assert (fake.read(PORTS), fake.read(PAGES)) == ("61000-65535", "64")
    # Another process restores from the file.
    restored = restore(state.read(), fake.host, state.record)
    assert fake.snapshot() == before
    assert {outcome.status for outcome in restored.outcomes} == {"restored"}
    assert restored.undo == state.read() == Undo()


def test_a_repeated_change_is_recorded_once(fake: FakeHost) -> None:
    before = fake.snapshot()
    first = prepare([EVERYTHING], HUGE_PAGES, fake.host)
    log = list(fake.ethtool.log)
    second = prepare([EVERYTHING], HUGE_PAGES, fake.host, undo=first.undo)
    assert (second.outcomes, second.undo, fake.ethtool.log) == ([], first.undo, log)
    restore(second.undo, fake.host)
    assert fake.snapshot() == before


def test_queues_are_changed_first(fake: FakeHost) -> None:
    prepare([EVERYTHING], HUGE_PAGES, fake.host)
    assert fake.ethtool.log[0][0] == "channels"
    assert prepare([EVERYTHING], HUGE_PAGES, fake.host).undo == Undo()


@pytest.mark.parametrize("part", ["channels", "rings", "coalesce", "features"])
@pytest.mark.parametrize("fault", ["refuse", "deaf"])
def test_a_failed_change_is_reported_and_the_others_continue(
    fake: FakeHost, part: str, fault: str
) -> None:
    before = fake.snapshot()
    if fault == "refuse":
        fake.ethtool.refuse[part] = OSError(errno.EBUSY, "the firmware is thinking")
    else:
        fake.ethtool.deaf.add(part)
    result = prepare([EVERYTHING], HUGE_PAGES, fake.host)
    refused = [outcome for outcome in result.outcomes if outcome.status == "refused"]
    assert len(refused) == 1
    expected = {"refuse": "the firmware is thinking", "deaf": "changed nothing"}[fault]
    assert expected in refused[0].line
    assert sum(outcome.status == "done" for outcome in result.outcomes) >= 6
    assert (part, "eth1") not in [entry.key for entry in result.undo.entries], "nothing to restore"
    restore(result.undo, fake.host)
    assert fake.snapshot() == before


def test_a_reduced_value_is_reported_and_restored(fake: FakeHost) -> None:
    fake.ethtool.limit["rings.rx"] = 2048
    result = apply(plan(nic(rx_ring=4096), fake.host), fake.host)
    assert outcomes(result) == {"eth1 ring sizes": ("partly", "rx 2048")}
    restore(result.undo, fake.host)
    assert fake.nic.parts["rings"]["rx"] == 512


def test_an_unsupported_change_is_not_a_refused_one(fake: FakeHost) -> None:
    del fake.nic.parts["rings"]
    result = apply(plan(nic(rx_ring=64), fake.host), fake.host)
    assert outcomes(result) == {"eth1 ring sizes": ("not supported", "Operation not supported")}


def test_single_values_that_others_changed_later_are_kept(fake: FakeHost) -> None:
    result = prepare([EVERYTHING], HUGE_PAGES, fake.host)
    fake.nic.parts["rings"]["rx"] = 2048
    fake.write("proc/irq/41/smp_affinity_list", "2")
    fake.write(PAGES, 128)
    restored = restore(result.undo, fake.host)
    lines = outcomes(restored)
    assert lines["eth1 ring sizes"] == ("left", "changed by another program since: rx 2048")
    assert lines["eth1 irq 41 interrupt affinity"][0] == "left"
    assert lines["node1/2048kB huge pages"][0] == "left"
    assert fake.nic.parts["rings"]["rx"] == 2048
    assert fake.nic.parts["rings"]["tx"] == 512, "still HARP's value"
    assert fake.read("proc/irq/41/smp_affinity_list") == "2"
    assert fake.read("proc/irq/40/smp_affinity_list") == "0-7"
    assert restored.undo == Undo()


def test_a_value_that_was_restored_by_others_is_left(fake: FakeHost) -> None:
    result = apply(plan(nic(rx_ring=64), fake.host), fake.host)
    fake.nic.parts["rings"]["rx"] = 512
    log = len(fake.ethtool.log)
    assert restore(result.undo, fake.host) == Result([], Undo())
    assert len(fake.ethtool.log) == log


def test_reserved_ports_of_others_stay(fake: FakeHost) -> None:
    fake.write(PORTS, "5000,61000-61005")
    result = apply(plan_host([nic()], 0, fake.host), fake.host)
    assert fake.read(PORTS) == "5000,61000-65535"
    fake.write(PORTS, "5000,7000-7001,61000-65535")
    restore(result.undo, fake.host)
    assert fake.read(PORTS) == "5000,7000-7001,61000-61005"


class Died(BaseException):
    """The death of harpd."""


def test_fewer_huge_pages_and_a_crash_before_the_next_record(fake: FakeHost) -> None:
    (*_, change) = plan_host([nic()], 64, fake.host)
    state = State()

    def record(undo: Undo) -> None:
        state.record(undo)
        fake.write(PAGES, 17)  # the kernel found fewer pages
        raise Died

    with pytest.raises(Died):
        apply([change], fake.host, record)
    restore(state.read(), fake.host)
    assert fake.read(PAGES) == "0"


def test_a_change_that_cannot_be_recorded_is_not_applied(fake: FakeHost) -> None:
    before = fake.snapshot()
    result = prepare([EVERYTHING], HUGE_PAGES, fake.host, State(fail_at=1).record)
    assert fake.snapshot() == before
    changes = [outcome for outcome in result.outcomes if outcome.status == "refused"]
    assert len(changes) >= 7
    assert all("No space left" in outcome.text for outcome in changes)
    assert result.undo == Undo()


def test_a_disk_that_fills_up_between_changes(fake: FakeHost) -> None:
    before = fake.snapshot()
    state = State(fail_at=6)
    result = prepare([EVERYTHING], HUGE_PAGES, fake.host, state.record)
    assert {"done", "refused", "partly"} >= {outcome.status for outcome in result.outcomes}
    assert restore(result.undo, fake.host, state.record).undo == Undo()
    assert fake.snapshot() == before


def test_a_removed_or_replaced_interface_is_not_restored(fake: FakeHost) -> None:
    config = nic(rx_ring=64)
    undo = apply(plan(config, fake.host), fake.host).undo
    fake.ifindexes["eth1"] = 6
    restored = restore(undo, fake.host)
    assert outcomes(restored)["eth1 ring sizes"][0] == "gone"
    assert restored.undo == Undo()
    assert fake.nic.parts["rings"]["rx"] == 64, "the new NIC keeps its value"
    del fake.ifindexes["eth1"]
    assert outcomes(restore(undo, fake.host))["eth1 ring sizes"][0] == "gone"


def test_an_interrupt_removed_with_its_queue_is_skipped(fake: FakeHost) -> None:
    undo = prepare([nic(irq_affinity="local")], HUGE_PAGES, fake.host).undo
    fake.remove("proc/irq/47/smp_affinity_list")
    restored = restore(undo, fake.host)
    assert outcomes(restored)["eth1 irq 47 interrupt affinity"][0] == "gone"
    assert fake.read("proc/irq/46/smp_affinity_list") == "0-7"


def test_a_failed_restore_stays_in_the_list(fake: FakeHost) -> None:
    undo = apply(plan(nic(rx_ring=64), fake.host), fake.host).undo
    fake.ethtool.refuse["rings"] = OSError(errno.EBUSY, "in use")
    restored = restore(undo, fake.host)
    assert outcomes(restored)["eth1 ring sizes"] == ("refused", "not restored: in use")
    assert restored.undo == undo
    fake.ethtool.refuse.clear()
    fake.ethtool.deaf.add("rings")
    assert outcomes(restore(undo, fake.host))["eth1 ring sizes"][0] == "refused"
    fake.ethtool.deaf.clear()
    assert restore(restored.undo, fake.host).undo == Undo()
    assert fake.nic.parts["rings"]["rx"] == 512
