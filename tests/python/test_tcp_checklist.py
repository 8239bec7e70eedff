# SPDX-License-Identifier: Apache-2.0
"""docs/tcp.md is honest: every state is one of four, every file and test that it names is there."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHECKLIST = ROOT / "docs" / "tcp.md"
COLUMNS = ["section", "asks for", "state", "where", "shown by"]
# After these a reason must follow; after "done" nothing need.
REASONED = ("differs: ", "not done on purpose: ", "open: ")
SPAN = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Row:
    """A row of one of the tables."""

    line: int
    section: str
    state: str
    where: str
    shown_by: str

    def fault(self, word: str) -> str:
        return f"docs/tcp.md:{self.line}: section {self.section}: {word}"


def rows_of(text: str) -> list[Row]:
    """The rows of all tables, which must have the checklist's columns."""
    rows: list[Row] = []
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not inside:
            assert cells == COLUMNS, f"docs/tcp.md:{number}: the columns are {COLUMNS}"
            inside = True
        elif not set(line) <= set("|-: "):
            assert len(cells) == len(COLUMNS), f"docs/tcp.md:{number}: {len(cells)} cells"
            rows.append(Row(number, cells[0], *cells[2:]))
    return rows


@cache
def text_of(path: Path) -> str | None:
    return path.read_text(errors="replace") if path.is_file() else None


def is_case(path: Path, name: str) -> bool:
    """Does this test file define this case? name[parameter]: and has it that parameter?"""
    text = text_of(path) or ""
    name, _, parameter = name.partition("[")
    if parameter and f'"{parameter.removesuffix("]")}"' not in text:
        return False
    if path.suffix == ".py":
        return re.search(rf"^\s*def {re.escape(name)}\(", text, re.MULTILINE) is not None
    test = rf"TEST\({re.escape(name.removeprefix('test_'))}\)"
    return re.search(rf"^(static )?\w[\w *]*\b{re.escape(name)}\(|^{test}", text, re.M) is not None


def faults_of(row: Row) -> list[str]:
    """What is wrong with a row."""
    faults = []
    if row.state != "done" and not row.state.startswith(REASONED):
        faults.append(row.fault(f"no such state: {row.state}"))
    tests, path = SPAN.findall(row.shown_by), None
    if not tests and row.state.startswith(("done", "differs")):
        faults.append(row.fault("no test shows it"))
    for test in tests:
        file, _, case = test.partition("::")
        path = ROOT / "tests" / file if file else path  # "::case": of the file before
        if path is None or text_of(path) is None:
            faults.append(row.fault(f"no such test file: {test}"))
        elif case and not is_case(path, case):
            faults.append(row.fault(f"no such test: {test}"))
    files = SPAN.findall(row.where)
    if not files and row.state.startswith(("done", "differs")):
        faults.append(row.fault("no file does it"))
    faults += [
        row.fault(f"no such file: {file}")
        for file in files
        if text_of(ROOT / "dataplane" / file) is None
    ]
    return faults


def test_the_checklist_names_what_there_is() -> None:
    rows = rows_of(CHECKLIST.read_text())
    assert len(rows) > 200
    assert [fault for row in rows for fault in faults_of(row)] == []
