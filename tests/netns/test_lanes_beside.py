# SPDX-License-Identifier: Apache-2.0
"""Lanes of comms while somebody takes away the device beside the interface that they come by."""

from collections.abc import Iterator

import pytest
from lanes_rig import MIB, options, railed, shaped, wait_for_rails
from test_beside import beside, links

from harp.bench.streams import SINK, SOURCE, Stream
from harp.lab import Lab
from harp.lab.rails import Rails

FEW = {"HARP_LANES": "2", "HARP_KERNEL_LANES": "2"}


@pytest.fixture(scope="module")
def lab(need_root: None) -> Iterator[Lab]:
    with railed(2) as made:
        shaped(made)
        yield made


@pytest.mark.parametrize("path", ["xdp", "auto"])
@pytest.mark.parametrize("rank", [SINK, SOURCE], ids=["receiver", "sender"])
def test_a_device_that_was_removed_costs_a_warning(lab: Lab, path: str, rank: int) -> None:
    rails = Rails(lab)
    host = lab.hosts[rank]
    name = beside(host)
    with Stream(lab, options(path, HARP_RAILS="all", **FEW)) as stream:
        wait_for_rails(stream, rails, [0, 1])
        before = links(host)[name]["ifindex"]
        host.run("ip", "link", "del", name)
        stream.flow(2 * MIB)
        wait_for_rails(stream, rails, [0, 1])
        assert links(host)[name]["ifindex"] != before
        stream.finish()
        said = stream.ranks[rank].log()
    assert said.count(f"{name} was removed") == 1
