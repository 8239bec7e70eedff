# SPDX-License-Identifier: Apache-2.0
"""conf/99-harp-vfio.rules, as udev applies it: it opens one card's VFIO group, and no other."""

import shutil
import subprocess
from pathlib import Path

import pytest

RULES = Path(__file__).parents[2] / "conf" / "99-harp-vfio.rules"
CARD = "0000:00:06.0"

# udev reads these rules alone, and says what they make of the device lo.
APPLY = """set -e
mount --make-rprivate /
mount -t tmpfs none /run
mkdir -p /run/udev/rules.d
cp "$1" /run/udev/rules.d/
udevadm test /sys/class/net/lo 2>&1
"""


@pytest.mark.parametrize(
    ("devices", "opened"),
    [([CARD], True), (["0000:00:07.0"], False), ([], False)],
    ids=["card", "other-card", "empty"],
)
def test_only_the_named_card_is_opened(
    need_root: None, tmp_path: Path, devices: list[str], opened: bool
) -> None:
    """The device lo replaces the group, because a machine without VFIO has none."""
    if not shutil.which("udevadm"):
        pytest.skip("udevadm is not installed")
    groups = tmp_path / "groups"
    (groups / "lo" / "devices").mkdir(parents=True)
    for device in devices:
        (groups / "lo" / "devices" / device).mkdir()
    text = RULES.read_text()
    for old, new in (
        ('SUBSYSTEM=="vfio"', 'SUBSYSTEM=="net"'),
        ("/sys/kernel/iommu_groups/", f"{groups}/"),
        ('GROUP="harp", MODE="0660"', 'ENV{HARP_OPENED}="%k"'),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    rules = tmp_path / "99-harp.rules"
    rules.write_text(text)
    shell = ["unshare", "--mount", "sh", "-c", APPLY, "sh", str(rules)]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=60, check=True)
    assert ("HARP_OPENED=lo" in done.stdout) == opened
