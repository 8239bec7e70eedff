# SPDX-License-Identifier: Apache-2.0
"""Files, commands, functions, settings and metrics that the documents name exist. In docs/tcp.md,
every state is one of four, and every file and test exists."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
import pytest

from harp.cli import cli, manual
from harp.config import keys
from harp.errors import Exit

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"),
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
)
# A path or a file's name, perhaps with a star: `plugin/comm*.c`, `tcp_in.c`, `docs/lanes.md`.
SUFFIXES = "c|h|pyx|pxd|py|md|txt|service|build|yml|json|rules|yaml"
PATH = re.compile(rf"`((?!/)[\w*./-]+\.(?:{SUFFIXES})|(?:[\w*-]+/)+)`")
OUTPUTS = {".venv/", "dist/", "build/", "build-wheel/", "build-long/", "build-coverage/"}
# Files that harpd writes.
RUNTIME_FILES = {"state.json", "run_dir/state.json"}
# Folders of the files that a document names without a path.
FOLDERS = (
    *("", "coll", "dataplane", "harp", "plugin", "plugin/*", "tests"),
    *("dataplane/*", "harp/*", "tests/*"),
)
# CHANGELOG.md also names things that no longer exist.
CURRENT = tuple(document for document in DOCUMENTS if document != "CHANGELOG.md")
NAME = re.compile(r"\b(?:HARP_[A-Z]\w*|harpd?_[a-z]\w*|\w+(?=\(\)))\b(?!\*)")
# An example, and functions of the kernel and of RFCs.
FOREIGN = {
    *("harp_noun_verb", "netif_receive_generic_xdp", "skb_pp_cow_data"),
    *("IsLost", "NextSeg", "SetPipe", "Update"),
}
COMMAND = re.compile(
    r"^(?:    |[#$] )(?:\w+=\S+ )*(?:\.venv/bin/)?harpctl (.*)$"
    r"|`(?:\w+=\S+ )*(?:\.venv/bin/)?harpctl ([^`]*)`",
    re.MULTILINE,
)
# Commands whose only result is success or an error.
WITHOUT_JSON = {
    *("start", "stop", "restart", "logs", "report"),
    *("run", "trace", "completion", "man", "install", "uninstall"),
}


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def does_exist(name: str) -> bool:
    patterns = [f"{folder}/{name}".strip("/") for folder in FOLDERS]
    return any(path for pattern in patterns for path in ROOT.glob(pattern))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_named_file_exists(document: str) -> None:
    names = set(PATH.findall(text_of(document))) - OUTPUTS - RUNTIME_FILES
    assert names or document in ("docs/check.md", "docs/harpctl.md"), "the document names files"
    assert not sorted(name for name in names if not does_exist(name))


LINK = re.compile(r"\[[^\]]*\]\((?!https?://|mailto:)([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub and MkDocs give to a page's headings."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text))
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_to_a_file_and_a_heading(document: str) -> None:
    broken = []
    for link in LINK.findall(text_of(document)):
        name, _, anchor = link.partition("#")
        target = (ROOT / document).parent / name if name else ROOT / document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_readme_and_architecture_are_short() -> None:
    assert len(text_of("README.md").splitlines()) <= 150
    assert len(text_of("ARCHITECTURE.md").split()) <= 2500


def source_files() -> Iterator[Path]:
    for folder in ("coll", "dataplane", "plugin", "harp", "tools", "tests", "examples"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".c", ".h", ".py", ".pyx", ".pxd", ".pyi"):
                yield path


@cache
def words_in_code() -> frozenset[str]:
    words: set[str] = set()
    for path in source_files():
        words.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    return frozenset(words)


@pytest.mark.parametrize("document", CURRENT)
def test_every_name_in_the_documents_exists(document: str) -> None:
    """Functions, variables, settings, metrics."""
    metrics = set(re.findall(r"harpd?_\w+", text_of("docs/metrics.md")))
    names = set(NAME.findall(text_of(document))) - FOREIGN
    assert not sorted(names - words_in_code() - metrics)


def test_every_variable_that_the_code_reads_is_a_setting() -> None:
    """Settings are documented: docs/configuration.md is generated from them."""
    variables: set[str] = set()
    nccl: set[str] = set()
    for path in source_files():
        text = path.read_text(encoding="utf-8")
        if "tests" not in path.parts:
            variables.update(re.findall(r"""(?:getenv\(|environ(?:\.get\(|\[))"(HARP_\w+)""", text))
        if "plugin" in path.parts and path.suffix == ".c" and "tests" not in path.parts:
            nccl.update(re.findall(r'"(NCCL_[A-Z_]+)"', text))
    assert len(variables) > 5
    assert len(nccl) > 4
    of_collectives = set(re.findall(r"\| `(HARP_COLL_\w+)`", text_of("docs/collectives.md")))
    assert not variables - {key.name for key in keys.global_keys()} - of_collectives
    assert not nccl - set(re.findall(r"\| `(NCCL_\w+)`", text_of("docs/configuration.md")))


def test_documents_name_the_plugin_as_every_nccl_accepts_it() -> None:
    """NCCL up to 2.20 and 2.27.3 accept no path in NCCL_NET_PLUGIN (tests/nccl)."""
    files = (*CURRENT, "tools/setup.sh")
    values = {file: re.findall(r"NCCL_NET_PLUGIN=([^\s`\"']+)", text_of(file)) for file in files}
    assert values["tools/setup.sh"]
    assert values["docs/nccl.md"]
    assert {name.rstrip(".,;") for names in values.values() for name in names} == {"harp"}
    assert "| `NCCL_NET_PLUGIN` | `harp`" in text_of("docs/configuration.md")


# --------------------------------------------------------------------------------------------------
# Commands.
#
def harpctl_lines(document: str) -> Iterator[str]:
    """Yield the command lines of a document, up to a comment, pipe, redirection or separator."""
    for in_block, inline in COMMAND.findall(text_of(document)):
        yield re.split(r"\s(?:#|\||&&|2?>|&$)|;\s|; *$", in_block or inline)[0].strip()


def commands(words: list[str]) -> Iterator[tuple[click.Command, list[str]]]:
    """Yield the command that the words name, and its arguments. `start|stop` is two commands."""
    stack: list[tuple[click.Command, list[str]]] = [(cli, words)]
    while stack:
        command, rest = stack.pop()
        if not isinstance(command, click.Group) or not rest or rest[0].startswith("-"):
            yield command, rest
            continue
        for name in rest[0].split("|"):
            child = command.get_command(click.Context(command), name)
            assert child is not None, f"harpctl has no {name}"
            stack.append((child, rest[1:]))


@pytest.mark.parametrize("document", CURRENT)
def test_every_command_line_is_valid(document: str) -> None:
    for line in harpctl_lines(document):
        for command, rest in commands(shlex.split(line)):
            if command.name == "run" and "--" in rest:  # another program's options follow
                rest = rest[: rest.index("--")]
            options = {option for param in command.params for option in param.opts}
            used = {word for word in rest if word.startswith("-")}
            assert not used - options - {"--help"}, line


def all_commands() -> dict[str, click.Command]:
    """Return all commands by name without `harpctl`, such as `bench loss`."""
    leaves = manual.leaves(cli, click.Context(cli, info_name="harpctl"))
    return {path.removeprefix("harpctl "): command for path, command in leaves}


def test_harpctl_md_lists_every_command() -> None:
    lines = [line.split() for line in harpctl_lines("docs/harpctl.md")]
    names = {" ".join(words[:count]) for words in lines for count in (1, 2)}
    assert not all_commands().keys() - names


def test_commands_with_output_have_json() -> None:
    without = {
        name
        for name, command in all_commands().items()
        if not any("-o" in param.opts and "json" in str(param.type) for param in command.params)
    }
    assert without == WITHOUT_JSON


def test_harpctl_md_lists_every_exit_code() -> None:
    part = text_of("docs/harpctl.md").partition("Exit codes:")[2].partition("\n## ")[0]
    codes = [
        int(code) for row in re.findall(r"^\| ([\d, ]+) \|", part, re.M) for code in row.split(",")
    ]
    assert codes == list(Exit)


# --------------------------------------------------------------------------------------------------
# docs/tcp.md.
#
CHECKLIST = ROOT / "docs" / "tcp.md"
COLUMNS = ["section", "asks for", "state", "where", "shown by"]
# States that need a reason, unlike "done".
REASONED = ("differs: ", "not done on purpose: ", "open: ")
SPAN = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Row:
    """A row of a table in docs/tcp.md."""

    line: int
    section: str
    state: str
    where: str
    shown_by: str

    def fault(self, text: str) -> str:
        return f"docs/tcp.md:{self.line}: section {self.section}: {text}"


def rows_of(text: str) -> list[Row]:
    """Return the rows of all tables, which must have the checklist's columns."""
    rows: list[Row] = []
    in_table = False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|"):
            in_table = False
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not in_table:
            assert cells == COLUMNS, f"docs/tcp.md:{number}: the columns are {COLUMNS}"
            in_table = True
        elif not set(line) <= set("|-: "):
            assert len(cells) == len(COLUMNS), f"docs/tcp.md:{number}: {len(cells)} cells"
            rows.append(Row(number, cells[0], *cells[2:]))
    return rows


@cache
def content_of(path: Path) -> str | None:
    return path.read_text(errors="replace") if path.is_file() else None


def is_case(path: Path, name: str) -> bool:
    """Does the test file define the case, and the parameter of name[parameter]?"""
    text = content_of(path) or ""
    name, _, parameter = name.partition("[")
    if parameter and f'"{parameter.removesuffix("]")}"' not in text:
        return False
    if path.suffix == ".py":
        return re.search(rf"^\s*def {re.escape(name)}\(", text, re.MULTILINE) is not None
    test = rf"TEST\({re.escape(name.removeprefix('test_'))}\)"
    return re.search(rf"^(static )?\w[\w *]*\b{re.escape(name)}\(|^{test}", text, re.M) is not None


def faults_of(row: Row) -> list[str]:
    faults = []
    if row.state != "done" and not row.state.startswith(REASONED):
        faults.append(row.fault(f"no such state: {row.state}"))
    tests, path = SPAN.findall(row.shown_by), None
    if not tests and row.state.startswith(("done", "differs")):
        faults.append(row.fault("no test shows it"))
    for test in tests:
        file, _, case = test.partition("::")
        path = ROOT / "tests" / file if file else path  # "::case": of the previous file
        if path is None or content_of(path) is None:
            faults.append(row.fault(f"no such test file: {test}"))
        elif case and not is_case(path, case):
            faults.append(row.fault(f"no such test: {test}"))
    files = SPAN.findall(row.where)
    if not files and row.state.startswith(("done", "differs")):
        faults.append(row.fault("no file does it"))
    faults += [
        row.fault(f"no such file: {file}")
        for file in files
        if content_of(ROOT / "dataplane" / file) is None
    ]
    return faults


def test_files_and_tests_in_the_checklist_exist() -> None:
    rows = rows_of(CHECKLIST.read_text())
    assert len(rows) > 200
    assert [fault for row in rows for fault in faults_of(row)] == []
