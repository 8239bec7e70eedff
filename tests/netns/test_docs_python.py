# SPDX-License-Identifier: Apache-2.0
"""Every code block of docs/python.md runs and prints nothing on stderr."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from netns_tools import Tools, outcome

from harp.lab import Lab

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"
BLOCK = re.compile(r"^```python( root)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(bool(match[1]), match[2]) for match in BLOCK.finditer(PAGE.read_text())]
STRICT = [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c"]

ECHO = """
import socket
server = socket.create_server(("10.77.0.2", 7000))
print("ready", flush=True)
while True:
    end, _ = server.accept()
    with end:
        while data := end.recv(65536):
            end.sendall(data)
"""


def test_the_page_has_python_and_python_root_blocks() -> None:
    fences = re.findall(r"^```(.*)$", PAGE.read_text(), re.MULTILINE)
    assert [fence for fence in fences if fence] == [
        "python root" if root else "python" for root, _ in BLOCKS
    ]
    assert sum(root for root, _ in BLOCKS) >= 3
    assert len(BLOCKS) >= 8


@pytest.mark.parametrize("code", [code for root, code in BLOCKS if not root])
def test_code_blocks_run_without_privileges(code: str) -> None:
    done = subprocess.run([*STRICT, code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("code", [code for root, code in BLOCKS if root])
def test_code_blocks_run_on_a_nic(tools: Tools, lab: Lab, code: str) -> None:
    here, there = lab.hosts
    tools.serve(there, [sys.executable, "-c", ECHO])
    out, err, status = outcome(here, [*STRICT, code])
    assert (status, err) == (0, ""), out
