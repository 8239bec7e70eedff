# SPDX-License-Identifier: Apache-2.0
"""The plugin's scan of harp.toml without harpd misses no required encryption that a TOML parser
finds."""

import itertools
import os
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from programs import finished

NOBODY = 65534
REQUIRED = "aes-256-gcm"


@pytest.fixture(scope="module")
def probe(build_dir: Path) -> Path:
    return build_dir / "tests" / "unit" / "plugin_probe"


def scan_files(probe: Path, *files: Path) -> list[tuple[int, str]]:
    """Return for each file the result, and the line or the reason."""
    done = finished([probe, "toml", *files], check=True)
    rows = [line.partition(" ") for line in done.stdout.splitlines()]
    return [(int(result), rest) for result, _, rest in rows]


def scan(probe: Path, folder: Path, text: str | bytes) -> tuple[int, str]:
    file = folder / "harp.toml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    (result,) = scan_files(probe, file)
    return result


def requires(text: str) -> bool:
    """Does the text, parsed as TOML, require encryption?"""
    lanes = tomllib.loads(text).get("lanes", {})
    return lanes.get("encrypt", "off") not in ("off", "auto") or bool(lanes.get("key_file"))


def spellings() -> Iterator[str]:
    """Yield all ways to write the requirement in TOML."""
    names = ("encrypt", '"encrypt"', "'encrypt'", '"\\u0065ncrypt"', '"encr\\U00000079pt"')
    values: tuple[str, ...] = (
        f'"{REQUIRED}"',
        f"'{REQUIRED}'",
        f'"""{REQUIRED}"""',
        f"'''\n{REQUIRED}'''",
    )
    values = (*values, '"aes-256\\u002dgcm"', '"""aes-\\\n  256-gcm"""')
    tables = (
        "[lanes]\n{}\n",
        "[ lanes ]\r\n\t{}\r\n",
        '["lanes"]\nharp = 1\n  {}',
        "lanes = {{ {} }}\n",
        'lanes = {{ harp = 1, {}, rails = "all" }} # off\n',
        "[lanes]\n# encrypt\n{} # comment\n[job]\nframes = 1024\n",
        'lanes = {{ rails = """\n#""", {} }}\n',
        "lanes = {{ rails = '''\n#''', {} }}\n",
    )
    for table, name, value in itertools.product(tables, names, values):
        for equals in ("=", " = ", "\t=  "):
            yield table.format(name + equals + value)
    for name, value in itertools.product(names, values):
        yield f"lanes.{name} = {value}\n"
        yield f"'lanes' . {name}={value}\n"
    yield '[lanes]\nkey_file = "/k"\n'
    yield "[lanes]\n'key_file' = '/k'\n"
    yield '[lanes]\n"key\\u005ffile" = "/k"\n'


def test_every_spelling_is_recognized(probe: Path, tmp_path: Path) -> None:
    files = []
    for number, text in enumerate(spellings()):
        assert requires(text), text
        file = tmp_path / f"{number}.toml"
        file.write_bytes(text.encode())
        files.append(file)
    assert len(files) > 500
    for file, (result, _) in zip(files, scan_files(probe, *files), strict=True):
        assert result == 1, file.read_text()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "# encrypt = \"aes-256-gcm\"\n  #key_file = '\\'\n",
        '[job]\npath = "xdp"\n[[nic]]\nifname = "eth1"\n',
        '[lanes]\nencrypt = "off"\n',
        "[lanes]\n  encrypt='auto'# no key\r\n",
        '[lanes]\n\tencrypt\t=\t"off"  ',
    ],
)
def test_a_file_without_a_requirement_requires_nothing(
    probe: Path, tmp_path: Path, text: str
) -> None:
    assert not requires(text)
    assert scan(probe, tmp_path, text) == (0, "0")


def test_the_file_that_harpctl_writes_requires_nothing(probe: Path, tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[2] / "conf" / "harp.toml").read_text()
    assert scan(probe, tmp_path, text) == (0, "0")


def test_the_line_is_named(probe: Path, tmp_path: Path) -> None:
    text = f'# harp.toml\n\n[lanes]\nencrypt = "{REQUIRED}"\n'
    assert scan(probe, tmp_path, text) == (1, "4")


PIECES = st.sampled_from(
    [
        *(
            "[lanes]",
            "lanes",
            ".",
            "encrypt",
            '"',
            "'",
            '"""',
            "'''",
            "=",
            " ",
            "\n",
            "#",
            "{",
            "}",
        ),
        *(",", "off", "auto", REQUIRED, "\\u0065ncrypt", "\\\n", "\t", "\r\n", "rails", "[job]"),
    ]
)
NOISE = st.lists(PIECES, max_size=8).map("".join)


@given(NOISE, st.sampled_from([*spellings(), ""]), NOISE)
@limits(max_examples=500, database=None, deadline=None)
def test_no_text_hides_a_requirement(
    probe: Path,
    tmp_path_factory: pytest.TempPathFactory,
    before: str,
    spelling: str,
    after: str,
) -> None:
    text = before + spelling + after
    try:
        if not requires(text):
            return
    except (tomllib.TOMLDecodeError, AttributeError, TypeError):
        return  # harpd does not start with this file
    assert scan(probe, tmp_path_factory.getbasetemp(), text)[0] == 1


def make_folder(file: Path) -> None:
    file.mkdir()


def write_large_file(file: Path) -> None:
    file.write_bytes(b"\n" * (256 * 1024 + 1))


def write_null_byte(file: Path) -> None:
    file.write_bytes(b'[lanes]\n\0encrypt = "aes-256-gcm"\n')


def write_utf_16(file: Path) -> None:
    file.write_text(f'[lanes]\nencrypt = "{REQUIRED}"\n', encoding="utf-16")


def allow_group_write(file: Path) -> None:
    file.write_text("")
    file.chmod(0o664)


def allow_world_write(file: Path) -> None:
    file.write_text("")
    file.chmod(0o646)


def change_owner(file: Path) -> None:
    file.write_text("")
    os.chown(file, NOBODY, NOBODY)


def link_to_file_of_another_user(file: Path) -> None:
    change_owner(file.with_suffix(".theirs"))
    file.symlink_to(file.with_suffix(".theirs"))


def link_to_itself(file: Path) -> None:
    file.symlink_to(file)


@pytest.mark.usefixtures("need_root")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_folder, "it is not a regular file"),
        (os.mkfifo, "it is not a regular file"),
        (write_large_file, "it is no TOML file: too large, or not text"),
        (write_null_byte, "it is no TOML file: too large, or not text"),
        (write_utf_16, "it is no TOML file: too large, or not text"),
        (allow_group_write, "others may write it (mode 664): chmod go-w"),
        (allow_world_write, "others may write it (mode 646): chmod go-w"),
        (
            change_owner,
            f"it belongs to user {NOBODY}, and must belong to root or to this user (0)",
        ),
        (link_to_file_of_another_user, f"it belongs to user {NOBODY}, and must belong"),
        (link_to_itself, "it cannot be opened: Too many levels of symbolic links"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_unusable_file_is_an_error(
    probe: Path, tmp_path: Path, make: Callable[[Path], None], reason: str
) -> None:
    file = tmp_path / "harp.toml"
    make(file)
    ((result, text),) = scan_files(probe, file)
    assert result < 0
    assert text.startswith(reason)


def test_a_missing_file_requires_nothing(probe: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    absent = (
        tmp_path / "harp.toml",
        tmp_path / "no" / "harp.toml",
        tmp_path / "file" / "harp.toml",
    )
    assert scan_files(probe, *absent) == [(0, "0")] * 3
