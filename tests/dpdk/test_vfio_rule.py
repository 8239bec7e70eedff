# SPDX-License-Identifier: Apache-2.0
"""udev applies conf/99-harp-vfio.rules: the rule opens the VFIO group of one NIC and no other."""

import shutil
import subprocess
from pathlib import Path

import pytest

RULES = Path(__file__).parents[2] / "conf" / "99-harp-vfio.rules"
NIC = "0000:00:06.0"

# udev reads only these rules and prints their effect on the device lo.
APPLY = """set -e
mount --make-rprivate /
mount -t tmpfs none /run
mkdir -p /run/udev/rules.d
cp "$1" /run/udev/rules.d/
udevadm test /sys/class/net/lo 2>&1
"""


@pytest.mark.parametrize(
    ("devices", "is_opened"),
    [([NIC], True), (["0000:00:07.0"], False), ([], False)],
    ids=["nic", "other-nic", "empty"],
)
def test_only_the_named_nic_is_opened(
    need_root: None, tmp_path: Path, devices: list[str], is_opened: bool
) -> None:
    """The device lo takes the place of the group, because the test host may not have VFIO."""
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
    command = ["unshare", "--mount", "sh", "-c", APPLY, "sh", str(rules)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ("HARP_OPENED=lo" in done.stdout) == is_opened
