# SPDX-License-Identifier: Apache-2.0
"""The hosts of the hostile tests."""

from collections.abc import Iterator

import pytest
from hosts import Hosts

from harp import _paths
from harp.lab import Lab, LabOptions


def _hosts(ipv6: bool, link_local_only: bool = False) -> Iterator[Hosts]:
    with Lab(LabOptions(hosts=2, ipv6=ipv6)) as lab:
        for host in lab.hosts if link_local_only else ():
            host.run("ip", "address", "flush", "dev", host.ifname, "scope", "global")
        yield Hosts(
            netns=[host.netns for host in lab.hosts],
            ifname=[host.ifname for host in lab.hosts],
            address=[host.address for host in lab.hosts],
            plugin=_paths.plugin(),
        )


@pytest.fixture(scope="module")
def hosts(need_root: None) -> Iterator[Hosts]:
    """Two hosts, offloads on, as a cloud VM's kernel would have them."""
    yield from _hosts(ipv6=False)


@pytest.fixture(scope="module", params=[False, True], ids=["IPv4", "IPv6"])
def family_hosts(request: pytest.FixtureRequest, need_root: None) -> Iterator[Hosts]:
    """Two hosts with addresses of one family."""
    yield from _hosts(ipv6=request.param)


@pytest.fixture
def link_local(need_root: None) -> Iterator[Hosts]:
    """Two hosts with link-local addresses only."""
    yield from _hosts(ipv6=True, link_local_only=True)
