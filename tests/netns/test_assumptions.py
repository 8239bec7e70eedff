# SPDX-License-Identifier: Apache-2.0
"""The platform is what we rely on: when a kernel changes, this says which assumption broke."""

from pathlib import Path

from netns_tools import run

from harp.lab import Lab


def test_xsk_facts(build_dir: Path, lab: Lab) -> None:
    host = lab.hosts[0]
    run(host, [build_dir / "tests" / "assumptions" / "xsk_facts", host.ifname])
