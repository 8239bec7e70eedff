# SPDX-License-Identifier: Apache-2.0
"""tools/check_commits.py accepts `area: Imperative summary` and names what it rejects."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECKER = Path(__file__).resolve().parents[2] / "tools" / "check_commits.py"


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        ("tcp: Retransmit after three duplicate ACKs", ""),
        ("tests, build: Pass the suite on two cores", ""),
        ("harp/cli: Address the reader", ""),
        ("docs: Speed up the search", ""),
        ("Retransmit after three duplicate ACKs", "not of the form"),
        ("tcp: retransmit after three duplicate ACKs", "not of the form"),
        ("tcp: Retransmitted after three duplicate ACKs", "Retransmitted is not imperative"),
        ("tcp: Adding a test", "Adding is not imperative"),
        ("tcp: Retransmits after three duplicate ACKs", "Retransmits is not imperative"),
        ("tcp: Retransmit " + "x" * 60, "more than 72"),
    ],
)
def test_subject_is_judged(tmp_path: Path, subject: str, words: str) -> None:
    """In a repository of its own with the checker in it, whose last commit has the subject."""
    tool = tmp_path / "tools" / CHECKER.name
    tool.parent.mkdir()
    tool.write_bytes(CHECKER.read_bytes())
    who = ["-c", "user.name=x", "-c", "user.email=x@localhost"]
    git = ["git", "-C", str(tmp_path), *who]
    subprocess.run([*git, "init", "-q"], check=True)
    for text in ("an old subject that is not checked any more", subject):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", text], check=True)
    done = subprocess.run(
        [sys.executable, tool],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin", "BASE": "HEAD~1"},
    )
    assert done.returncode == bool(words), done.stderr
    assert words in done.stdout
    assert len(done.stdout.splitlines()) == bool(words)
