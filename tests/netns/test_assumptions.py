# SPDX-License-Identifier: Apache-2.0
"""Assumptions about the platform. When a kernel changes, these tests name the broken assumption."""

from pathlib import Path

from netns_tools import run

from harp.lab import Lab


def test_af_xdp_sockets_behave_as_assumed(build_dir: Path, lab: Lab) -> None:
    host = lab.hosts[0]
    run(host, [build_dir / "tests" / "assumptions" / "xsk_facts", host.ifname])


def test_the_kernel_resolves_neighbors_as_assumed(build_dir: Path, each: Lab) -> None:
    host, peer = each.hosts
    family = "ipv6" if ":" in peer.address else "ipv4"
    reachable_ms = "500"
    host.sysctl(f"{family}/neigh/{host.ifname}/base_reachable_time_ms", int(reachable_ms))
    program = build_dir / "tests" / "assumptions" / "neighbor_facts"
    run(host, [program, host.ifname, peer.address, reachable_ms])
