# SPDX-License-Identifier: Apache-2.0
"""Huge pages of this machine, and what its kernel answers about NICs."""

import errno
import socket
from pathlib import Path

import pytest

from harp.nicprep import Host, prepare, restore
from harp.nicprep.kinds import pages_path
from harp.nicprep.plan import plan_host
from harp.nicprep.transport import Ethtool

ETHTOOL = Ethtool()


def error_of(part: str, ifname: str) -> OSError | None:
    try:
        ETHTOOL.get(part, ifname)
    except OSError as error:
        return error
    return None


def total() -> int:
    return sum(
        int(path.read_text())
        for path in Path("/sys/devices/system/node").glob(
            "node*/hugepages/hugepages-2048kB/nr_hugepages"
        )
    )


def test_huge_pages_are_allocated_and_freed(need_root: None) -> None:
    host = Host()
    nodes = host.nodes()
    if not nodes or not pages_path(host, f"node{nodes[0]}/2048kB").exists():
        pytest.skip("needs huge pages of 2 MiB")
    before = total()
    requested = before + 2 * len(nodes)
    result = prepare([], requested, host)
    try:
        assert {outcome.status for outcome in result.outcomes} == {"done"}, result.outcomes
        assert total() > before
        assert not any(change.is_needed for change in plan_host([], requested, host))
    finally:
        restored = restore(result.undo, host)
    assert {outcome.status for outcome in restored.outcomes} == {"restored"}
    assert total() == before


@pytest.mark.parametrize("part", ["channels", "rings", "coalesce", "features", "rss"])
def test_an_unknown_interface_is_an_error(part: str) -> None:
    error = error_of(part, "nosuch0")
    assert error is not None
    assert error.errno == errno.ENODEV


@pytest.mark.parametrize("name", ["sixteen-letters-x", "", "a/b", "\N{SNOWMAN}"])
def test_invalid_interface_names_are_errors(name: str) -> None:
    for part in ("channels", "rss"):
        assert error_of(part, name) is not None


def test_every_interface_of_this_machine_answers_or_is_unsupported() -> None:
    """On any hardware, a part has integer values or fails with EOPNOTSUPP."""
    for _, ifname in socket.if_nameindex():
        for part in ("channels", "rings", "coalesce", "rss"):
            error = error_of(part, ifname)
            assert error is None or error.errno == errno.EOPNOTSUPP, f"{ifname} {part}: {error}"
            values = {} if error else ETHTOOL.get(part, ifname)
            assert error or values
            assert all(isinstance(value, int | list) for value in values.values())
        features = ETHTOOL.get("features", ifname)
        changeable = ETHTOOL.get("changeable", ifname)
        assert changeable.items() <= features.items()
        assert all(isinstance(on, bool) for on in features.values())


def test_error_texts_of_the_kernel_are_kept(need_root: None) -> None:
    """The text comes from netlink's extended ACK."""
    error = error_of("channels", "nosuch0")
    assert error is not None
    assert error.strerror == "no device matches name"
    with pytest.raises(OSError, match="can't be set"):
        ETHTOOL.set("rings", "lo", {"rx_max": 1})
