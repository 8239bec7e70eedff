# SPDX-License-Identifier: Apache-2.0
"""conf/harp.toml, docs/configuration.md and the manual pages are generated, correct and current."""

import re
import shutil
import sys
from pathlib import Path

import pytest
from programs import finished

from harp import config
from harp.cli import manual
from harp.config import keys, reference
from harp.errors import Exit


def test_generated_files_are_current(root_dir: Path) -> None:
    command = [sys.executable, "tools/docs.py", "--check"]
    done = finished(command, cwd=root_dir)
    assert done.returncode == 0, done.stdout


def test_the_example_sets_nothing() -> None:
    parsed = config.parse(reference.to_toml())
    assert (parsed.nics, parsed.dpdk) == ((), ())
    assert all(value.source.kind == "default" for value in parsed.values.values())


def test_the_example_without_hashes_sets_every_default() -> None:
    text = re.sub(r"^#(?=[a-z\[])", "", reference.to_toml(), flags=re.MULTILINE)
    parsed = config.parse(text)
    for value in parsed.values.values():
        assert value.is_default
        assert (value.source.kind == "file") == bool(value.key.table)
    (nic,), (port,) = parsed.nic_values, parsed.dpdk_values
    for value in (*nic.values(), *port.values()):
        assert value.source.kind == "file"
        assert value.is_default or value.key.name in ("IFNAME", "DEVICE")
    assert max(len(line) for line in text.splitlines()) <= 100


@pytest.mark.parametrize("name", sorted(manual.PAGES))
def test_manual_pages_are_valid_roff(name: str, tmp_path: Path) -> None:
    """groff with all warnings, and mandoc's linter if it is installed."""
    (tmp_path / name).write_text(manual.page(name))
    formatted = finished(["groff", "-man", "-Tutf8", "-ww", "-b", tmp_path / name], check=True)
    assert formatted.stderr == ""
    assert formatted.stdout.count("\n") > 40
    if shutil.which("mandoc"):
        lint = ["mandoc", "-Tlint", "-Wwarning", tmp_path / name]
        assert finished(lint).stdout == ""


def plain(name: str, tmp_path: Path) -> str:
    """Return a formatted page in one line."""
    (tmp_path / "page").write_text(manual.page(name))
    command = ["groff", "-man", "-Tascii", "-P-c", "-P-b", "-P-u", "-rLL=2000n", tmp_path / "page"]
    shown = finished(command, check=True).stdout
    return " ".join(shown.split())


def test_manual_pages_are_complete(tmp_path: Path) -> None:
    text = plain("harp.toml", tmp_path)
    for key in keys.all_keys():
        if key.table:
            assert f"{key.key} {' '.join(key.help.split())}." in text
    text = plain("harpctl", tmp_path)
    assert "-h, --help Show this message" in text
    assert "--version" in text
    environment = text[text.index("ENVIRONMENT") : text.index("FILES")]
    settings, others = environment.split("These variables have no key")
    for key in keys.global_keys():
        assert key.name in (settings if key.table else others)
        assert key.name not in (others if key.table else settings).split()
    for path in ("harpctl config init", "harpctl bench loss", "harpctl run", "harpctl check"):
        assert path in text
    assert "--plugin" in text
    assert 'eval "$(harpctl env)"' in text
    exits = text[text.index("EXIT STATUS") : text.index("ENVIRONMENT")]
    assert {int(number) for number in re.findall(r"\b\d+\b", exits)} == {int(code) for code in Exit}
    text = plain("harpd", tmp_path)
    assert "--config" in text
    assert "-h, --help Show this message" in text
    assert "SIGHUP Restarts harpd with a changed harp.toml" in text


def test_escaped_text_is_printed_literally(tmp_path: Path) -> None:
    text = ".so /etc/passwd\n'br \\fB -- \"quoted\" `code` ^ ~ it's \\n(yr é"
    page = f'.TH x 1 "" "" ""\n.SH NAME\nx\n.nf\n{manual.escape(text)}\n'
    (tmp_path / "page").write_text(page)
    command = ["groff", "-man", "-Tutf8", "-ww", "-P-c", tmp_path / "page"]
    done = finished(command, check=True)
    assert done.stderr == ""
    lines = [line.strip() for line in done.stdout.splitlines()]
    for line in text.splitlines():
        assert line in lines


def test_man_finds_the_pages(tmp_path: Path) -> None:
    paths = list(manual.write_all(tmp_path))
    assert sorted(path.name for path in paths) == ["harp.toml.5", "harpctl.1", "harpd.8"]
    for path in paths:
        section = path.suffix[1:]
        command = ["man", "-M", str(tmp_path), "-w", section, path.stem]
        done = finished(command, check=True)
        assert done.stdout.strip() == str(path)
