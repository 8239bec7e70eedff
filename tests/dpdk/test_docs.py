# SPDX-License-Identifier: Apache-2.0
"""docs/dpdk-python.md: its examples run as they stand, in their order, in one process."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# What each of them prints, a pattern a line; a block that prints other or no lines is wrong.
PRINTED = """\
DPDK \\d+\\.\\d+.* huge pages: False
net_ring [0:]+ 1500 \\d+ \\('MULTI_SEGS',\\)
True 0 \\d+
60 b'hello'
b'HELLO'
the bytes of a packet are in use.*
\\[9000 9000 9000 9000\\] \\[0, 1, 2, 3\\] \\d+
100000 100000 \\d+/s
Ether / IP / UDP .* / Raw
Ether / IP / ICMP .*
"""


def test_the_examples_run(tmp_path: Path) -> None:
    """All of them."""
    from harp.errors import HarpError

    try:
        import harp.dpdk  # noqa: F401
    except HarpError as error:
        pytest.skip(str(error))
    text = (ROOT / "docs" / "dpdk-python.md").read_text()
    blocks = BLOCK.findall(text)
    assert len(blocks) == text.count("```python") > 5
    script = tmp_path / "walk.py"
    script.write_text("\n".join(blocks))
    command = [sys.executable, "-W", "error::ResourceWarning", str(script)]
    done = subprocess.run(
        command, cwd=ROOT, env=None, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    patterns = PRINTED.splitlines()
    assert len(lines) == len(patterns), done.stdout
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(pattern, line), (pattern, line)
