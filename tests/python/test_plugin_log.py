# SPDX-License-Identifier: Apache-2.0
"""The reader of a plugin's log."""

from harp.plugin_log import path_in_use

XDP = "[0] eth1: path HARP: AF_XDP generic copy on eth1 queue 0"
CHOICE = "[0] to 10.77.0.1: HARP TCP (round trip 91.0 us) and kernel TCP: which is faster is found"


def test_the_path_is_not_what_a_comm_chooses() -> None:
    assert path_in_use([XDP, CHOICE]) == "AF_XDP generic copy on eth1 queue 0"
    assert path_in_use([CHOICE]) == ""


def test_the_newest_path_with_its_reason() -> None:
    kernel = "[0] eth1: path kernel TCP: HARP_PATH=kernel"
    assert path_in_use([XDP, kernel, CHOICE]) == "kernel TCP: HARP_PATH=kernel"
    assert path_in_use([kernel, XDP]).startswith("AF_XDP")
    assert path_in_use(["[0] eth1: path DPDK: net_ring0"]) == "net_ring0"
