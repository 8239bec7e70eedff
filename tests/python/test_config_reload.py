# SPDX-License-Identifier: Apache-2.0
"""Settings that SIGHUP changes, and settings that need a restart."""

import pytest
from config_samples import TABLE_KEYS, good, identity
from test_config_values import text_of, value_in, with_companions

from harp import config
from harp.config import keys, values
from harp.config.keys import Key

NAMES = ("ifname", "device", "name")  # they identify the NIC or port
NIC = '[[nic]]\nifname = "{}"\n{}\n'


def reload(old: str, new: str) -> tuple[list[str], list[str], config.Config]:
    difference = config.reload(config.parse(old), config.parse(new))
    return list(difference.live), list(difference.restart), difference.effective


@pytest.mark.parametrize("key", [key for key in TABLE_KEYS if key.key not in NAMES], ids=identity)
def test_keys_marked_live_change_at_once_and_others_need_a_restart(key: Key) -> None:
    name_key = keys.ARRAYS.get(key.table)
    nic = f'[[{key.table}]]\n{name_key} = "e"\n' if name_key else ""
    new_value = next(
        value for value in good(key) if values.from_toml(value, key) != values.preset(key)
    )
    old = config.parse(nic)
    new = config.parse(with_companions(key, text_of(key, new_value)))
    difference = config.reload(old, new)
    changes = (*difference.live, *difference.restart)
    (change,) = (c for c in changes if c.startswith(f"{key.place}{' of e' if nic else ''}: "))
    assert (change in difference.live) == key.live
    expected = new if key.live else old
    assert value_in(difference.effective, key) == value_in(expected, key)


def test_equal_files_change_nothing() -> None:
    text = NIC.format("a", "") + NIC.format("b", "queues = 2") + "[job]\nframes = 1024\n"
    other = (
        "# moved\n\n[job]\nframes = 1_024\n" + NIC.format("b", "queues = 2") + NIC.format("a", "")
    )
    assert reload(text, text)[:2] == ([], [])
    assert reload(text, other)[:2] == ([], []), "lines and the order of NICs do not matter"


def test_added_and_removed_nics_need_a_restart() -> None:
    live, restart, effective = reload(
        NIC.format("a", "queues = 2") + NIC.format("b", ""),
        NIC.format("c", "") + NIC.format("a", 'queues = 4\nlease_queues = "1-3"\nrss = "unknown"'),
    )
    assert live == [
        'nic.lease_queues of a: "" -> "1-3"',
        'nic.rss of a: "" -> "unknown"',
    ]
    assert restart == [
        "nic.queues of a: 2 -> 4",
        "nic of b is gone",
        "nic of c is new",
    ]
    assert [(nic.ifname, nic.queues, nic.rss) for nic in effective.nics] == [
        ("a", 2, "unknown"),
        ("b", 0, ""),
    ]


def test_dpdk_ports_are_added_removed_and_changed_live() -> None:
    port = '[[dpdk]]\ndevice = "{}"\nname = "{}"\n{}\n'
    live, restart, effective = reload(
        port.format("net_tap0", "a", "") + port.format("net_tap1", "b", ""),
        port.format("net_tap2", "c", "") + port.format("net_tap1,iface=x", "b", "queues = 4"),
    )
    assert live == [
        "dpdk of a is gone",
        'dpdk.device of b: "net_tap1" -> "net_tap1,iface=x"',
        "dpdk.queues of b: 1 -> 4",
        "dpdk of c is new",
    ]
    assert restart == []
    assert [(p.port, p.device, p.queues) for p in effective.dpdk] == [
        ("c", "net_tap2", 1),
        ("b", "net_tap1,iface=x", 4),
    ]


def test_pending_changes_are_repeated_until_the_restart() -> None:
    """The second SIGHUP compares with the settings in force, not with the previous file."""
    old = config.parse("")
    new = config.parse('[daemon]\nrun_dir = "/x"\nlog_level = "debug"\n')
    first = config.reload(old, new)
    second = config.reload(first.effective, new)
    assert second.restart == ('daemon.run_dir: "/run/harp" -> "/x"',)
    assert second.live == ()
    assert second.effective.daemon.log_level == "debug"


def test_settings_of_tools_are_ignored() -> None:
    difference = config.reload(config.parse(""), config.parse("", environ={"HARP_SEEDS": "3"}))
    assert (difference.live, difference.restart) == ((), ())


def test_settings_for_jobs_change_live() -> None:
    effective = reload("[job]\nframes = 1024\n", "[job]\nframes = 2048\n")[2]
    assert effective.job_settings() == "HARP_FRAMES=2048\n"
