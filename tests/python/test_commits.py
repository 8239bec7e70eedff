# SPDX-License-Identifier: Apache-2.0
"""tools/check_commits.py accepts `area: Imperative summary` and names what it rejects."""

import runpy
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
def test_subject_is_judged(subject: str, words: str) -> None:
    found = runpy.run_path(str(CHECKER))["offence"](subject)
    assert bool(found) == bool(words)
    assert words in found
