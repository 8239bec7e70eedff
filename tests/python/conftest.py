# SPDX-License-Identifier: Apache-2.0
"""What the tests of harpctl's benches share."""

import sys
from collections.abc import Sequence

import pytest

from harp import attaching, paths


@pytest.fixture
def few_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bench by turns that measures nothing that is worth having, and does everything it does.

    Ranks spin; where other tests run beside them, each message takes a time slice of those, and as
    many as a measurement wants take a minute. A round in which the machine's pace changes, as it
    always does then, is taken again: here it is not.
    """

    def few(_mode: str, sizes: Sequence[int]) -> str:
        return ",".join(f"{size}:64:16" for size in sizes)

    monkeypatch.setattr(paths, "sizes_argument", few)
    monkeypatch.setattr(attaching, "sizes_argument", few)
    monkeypatch.setattr(paths, "STEADY", sys.float_info.max)
