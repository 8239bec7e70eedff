# SPDX-License-Identifier: Apache-2.0
"""harp.dpdk: runs each case of bindings_cases.py in its own process and network namespace, and the
examples of docs/dpdk-python.md."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("bindings_cases.py")
CASES = re.findall(r"^def (\w+)\(\) -> None:", FILE.read_text(), re.MULTILINE)
IMPORT_WITHOUT_DPDK = """
import sys
sys.modules["harp._dpdk"] = None
import harp.dpdk
"""


@pytest.mark.parametrize("case", CASES)
def test_a_case_passes(case: str, bindings: None) -> None:
    if case == "ports_report_their_properties" and os.geteuid() != 0:
        pytest.skip("needs root: a tap device")
    namespace = ["unshare", "--net"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*namespace, sys.executable, str(FILE), case],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"{case}: {done.returncode}\n{(done.stdout + done.stderr)[-4000:]}", False)


# A pattern for each line that the document's examples print.
PRINTED = """\
DPDK \\d+\\.\\d+.* huge pages: False
net_ring [0:]+ 1500 \\d+ \\('MULTI_SEGS',\\)
True 0 \\d+
60 b'hello'
b'HELLO'
the bytes of a packet are in use.*
\\[9000, 9000, 9000, 9000\\] \\[0, 1, 2, 3\\] \\d+
100000 100000 \\d+/s
Ether / IP / UDP .* / Raw
Ether / IP / ICMP .*
"""


def test_the_document_examples_run(tmp_path: Path, bindings: None) -> None:
    """They run in order in one process and print exactly the expected lines."""
    text = (ROOT / "docs" / "dpdk-python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == text.count("```python") > 5
    script = tmp_path / "examples.py"
    script.write_text("\n".join(blocks))
    command = [sys.executable, "-W", "error::ResourceWarning", str(script)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines, patterns = done.stdout.splitlines(), PRINTED.splitlines()
    assert len(lines) == len(patterns), done.stdout
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(pattern, line), (pattern, line)


def test_a_missing_library_is_reported() -> None:
    """Without DPDK, the import raises an ImportError with one line that gives the remedy."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_WITHOUT_DPDK],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last == (
        "harp.dpdk._binding.MissingError: harp.dpdk: built without DPDK: install libdpdk-dev and"
        " rebuild"
    )
    catch = "try:\n import harp.dpdk\nexcept ImportError as e:\n print(type(e).__mro__[1].__name__)"
    code = IMPORT_WITHOUT_DPDK.replace("import harp.dpdk\n", catch + "\n")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "HarpError"
