# SPDX-License-Identifier: Apache-2.0
"""harpctl as a script sees it: output, messages and exit codes."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import click
import pytest

from harp import __version__, output
from harp._core import version
from harp.cli import COMMANDS, cli, manual
from harp.errors import Exit, HarpError

SLOW = {"matplotlib", "numpy", "pyroute2", "scapy"}


def harpctl(
    *arguments: str, timeout: float = 120, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from harp.cli import main; main()", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, env=env
    )


def imported(*arguments: str, env: Mapping[str, str] = os.environ) -> set[str]:
    """The packages that a harpctl with these arguments imports."""
    done = harpctl(*arguments, env={**env, "PYTHONPROFILEIMPORTTIME": "1"})
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    packages = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    assert {"click", "harp"} <= packages, done.stderr
    return packages


def test_versions_agree(root_dir: Path) -> None:
    assert version() == __version__
    assert f"version: '{__version__}'" in (root_dir / "meson.build").read_text()
    done = harpctl("--version")
    assert done.returncode == Exit.OK
    assert __version__ in done.stdout


def every_command() -> list[str]:
    """Paths of all commands and groups: harpctl, harpctl bench, harpctl bench lat ..."""
    context = click.Context(cli, info_name="harpctl")
    leaves = [path for path, _ in manual.leaves(cli, context)]
    groups = {path.rpartition(" ")[0] for path in leaves}
    return sorted({*leaves, *groups})


@pytest.mark.parametrize("path", every_command())
def test_help_has_an_example(path: str) -> None:
    done = harpctl(*path.split()[1:], "--help")
    assert done.returncode == Exit.OK
    usage, _, rest = done.stdout.partition("\n")
    assert usage.startswith(f"Usage: {path} ")
    assert re.search(rf"^ +{path}( |$)", rest, re.MULTILINE), "no line that one could type"


def test_a_table_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """However many columns, and however narrow what it is printed on."""
    columns, row = [f"column {n}" for n in range(40)], [f"{n}.123 [4.5, 6.7]" for n in range(40)]
    output.print_table(columns, [row])
    head, line = capsys.readouterr().out.splitlines()
    assert len(line) > 120
    assert [head.split("  ")[0], *line.split("  ")] == [columns[0], *row]


def on_terminal(columns: int, *arguments: str) -> tuple[int, str]:
    """A harpctl on a terminal of so many columns: its exit code, and what it shows."""
    ours, its = os.openpty()
    code = "from harp.cli import main; main()"
    env = {**os.environ, "TERM": "dumb", "COLUMNS": str(columns), "LINES": "40"}
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=its, stdout=its, stderr=its, env=env
    ) as process:
        os.close(its)
        shown = b""
        with contextlib.suppress(OSError):  # EIO: its last one is closed
            while more := os.read(ours, 65536):
                shown += more
        os.close(ours)
    return process.returncode, shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [20, 40, 60, 80])
def test_a_key_is_whole_on_every_terminal(columns: int) -> None:
    code, shown = on_terminal(columns, "config", "show")
    assert code == Exit.OK
    rows = json.loads(harpctl("config", "show", "-o", "json").stdout)["settings"]
    words = {line.split(" ")[0] for line in shown.splitlines()}
    assert not {row["key"] for row in rows} - words
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown


def test_what_check_finds_is_whole_on_a_narrow_terminal() -> None:
    _, shown = on_terminal(20, "check", "lo")
    found = json.loads(harpctl("check", "lo", "-o", "json").stdout)["findings"]
    words = {line.split(" ")[0] for line in shown.splitlines()}
    assert not {each["name"] for each in found} - words
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown


def test_a_command_that_lacks_a_module_says_so_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(COMMANDS, "bench", ("harp.no_such_module:bench", "Measures."))
    context = click.Context(cli, info_name="harpctl")
    broken = cli.get_command(context, "bench")
    assert broken is not None
    with pytest.raises(HarpError, match=r"bench can't be used: No module named .*make build"):
        broken.main(["lat", "--help"], standalone_mode=False)
    assert "check" in cli.get_help(context)


def test_every_command_of_the_list_is_there() -> None:
    for name, (place, begin) in COMMANDS.items():
        context = click.Context(cli, info_name="harpctl")
        command = cli.get_command(context, name)
        assert command is not None, place
        assert command.name == name
        assert command.help is not None
        assert command.help.startswith(begin)
    assert list(COMMANDS) == sorted(COMMANDS)


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        ("--help", set()),
        ("config show", set()),
        ("env", set()),
        ("flows", {"numpy"}),
        ("instances", set()),
        ("run --help", set()),
        ("stats", {"numpy"}),
        ("status", set()),
    ],
)
def test_what_takes_long_to_import_is_left_to_those_who_need_it(
    command: str, needed: set[str]
) -> None:
    assert imported(*command.split()) & SLOW <= needed


def test_a_command_is_completed_without_its_module() -> None:
    typed = {"_HARPCTL_COMPLETE": "bash_complete", "COMP_WORDS": "harpctl sta", "COMP_CWORD": "1"}
    assert not imported(env=os.environ | typed) & SLOW
    done = harpctl(env=os.environ | typed)
    assert done.stdout.splitlines() == ["plain,start", "plain,stats", "plain,status"]


@pytest.mark.parametrize(
    "command",
    [
        ["nonsense"],
        ["check", "lo", "--queue", "-1"],
        ["demo", "--hosts", "9"],
        ["demo", "--mtu", "12"],
        ["bench", "lat", "--path", "pigeon"],
        ["bench", "lat", "--timeout", "nan"],
        ["bench", "loss", "--loss", "99"],
        ["bench", "fairness", "--flows", "0"],
    ],
    ids=" ".join,
)
def test_bad_usage_is_exit_2(command: list[str]) -> None:
    done = harpctl(*command)
    assert done.returncode == Exit.USAGE
    assert "Traceback" not in done.stderr


def float_options() -> list[tuple[str, click.Command, str]]:
    """Every option of every command that takes a number with a point."""
    leaves = manual.leaves(cli, click.Context(cli, info_name="harpctl"))
    return [
        (path, command, option.opts[0])
        for path, command in leaves
        for option in command.params
        if isinstance(option.type, type(click.FLOAT))
    ]


@pytest.mark.parametrize("number", ["nan", "-nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize(
    ("path", "command", "option"),
    [pytest.param(*each, id=f"{each[0]} {each[2]}") for each in float_options()],
)
def test_every_number_is_finite(
    path: str, command: click.Command, option: str, number: str
) -> None:
    """A plain click.FLOAT or FloatRange would take some of these."""
    words = r"is no finite number|is not in the range"
    with pytest.raises(click.BadParameter, match=words) as refused:
        command.make_context(path, [option, number])
    assert refused.value.exit_code == Exit.USAGE
    message = refused.value.format_message()
    assert message.startswith(f"Invalid value for '{option}'")
    assert "\n" not in message


def test_check_of_no_interface_names_those_there_are() -> None:
    done = harpctl("check", "nope0")
    assert done.returncode == Exit.MISSING
    assert "nope0" in done.stderr
    assert "lo" in done.stderr


def test_check_json_and_exit_code_agree() -> None:
    done = harpctl("check", "lo", "-o", "json")
    report = json.loads(done.stdout)
    worst = max(item["severity"] for item in report["findings"])
    assert report["severity"] == worst
    assert worst == 2, "the plugin never uses HARP on lo"
    assert done.returncode == Exit.FAILURE


def test_check_of_the_whole_host() -> None:
    done = harpctl("check", "-o", "json")
    report = json.loads(done.stdout)
    assert report.keys() == {"severity", "verdict", "host", "interfaces"}
    best = min((each["severity"] for each in report["interfaces"]), default=2)
    assert report["severity"] == max(best, *(item["severity"] for item in report["host"]))
    code = [Exit.OK, Exit.WARNING, Exit.FAILURE][report["severity"]]
    assert done.returncode == (code if report["interfaces"] else Exit.MISSING)


@pytest.mark.usefixtures("need_root")
@pytest.mark.parametrize("family", [(), ("--ipv6",)], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("path", ["auto", "xdp", "kernel"])
def test_demo_agrees(path: str, family: tuple[str, ...]) -> None:
    done = harpctl("demo", "--epochs", "2", "--path", path, *family, "-o", "json")
    assert done.returncode == Exit.OK, done.stderr
    report = json.loads(done.stdout)
    verdict = report["verdict"]
    assert verdict["agree"]
    assert verdict["ranks_equal_bit_for_bit"]
    assert verdict["alone_by_shards_equal_bit_for_bit"]
    for rank in report["ranks"]:
        assert ("kernel TCP" in rank["path"]) == (path == "kernel")
        assert rank["sent_bytes"] > 1e6
        assert rank["counters"]["tx_packets"] > 0


@pytest.mark.usefixtures("need_root")
def test_demo_on_a_bridge_of_four() -> None:
    done = harpctl("demo", "--epochs", "1", "--hosts", "4", "--mtu", "9000", "-o", "json")
    assert done.returncode == Exit.OK, done.stderr
    report = json.loads(done.stdout)
    assert report["verdict"]["agree"]
    assert len(report["ranks"]) == 4


@pytest.mark.usefixtures("need_root")
@pytest.mark.parametrize("family", [(), ("--ipv6",)], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("mode", ["lat", "bw", "allreduce"])
def test_bench_delivers_right_results(mode: str, family: tuple[str, ...]) -> None:
    done = harpctl("bench", mode, "-b", "4K", "-e", "4K", "-n", "50", *family, "-o", "json")
    assert done.returncode == Exit.OK, done.stderr
    report = json.loads(done.stdout)
    assert report["net"] == "HARP"
    assert report["lab"]["ipv6"] == bool(family)
    assert [row["wrong"] for row in report["results"]] == [0]


@pytest.mark.usefixtures("need_root")
def test_bench_seals_its_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = ("bench", "bw", "-b", "4K", "-e", "4K", "-n", "50")
    monkeypatch.setenv("HARP_KEY_FILE", "/nowhere")  # --encrypt brings a key of its own
    done = harpctl(*bench, "--encrypt", "-o", "json")
    assert done.returncode == Exit.OK, done.stderr
    report = json.loads(done.stdout)
    assert report["encrypt"]
    assert [row["wrong"] for row in report["results"]] == [0]
    monkeypatch.setenv("HARP_ENCRYPT", "aes-256-gcm")  # without: the ranks do as they are told
    done = harpctl(*bench)
    assert done.returncode == Exit.FAILURE, done.stdout


@pytest.mark.usefixtures("need_root")
@pytest.mark.parametrize("family", [(), ("--ipv6",)], ids=["IPv4", "IPv6"])
def test_bench_wire_counts_frames(family: tuple[str, ...]) -> None:
    done = harpctl("bench", "wire", "--seconds", "1", *family, "-o", "json")
    assert done.returncode == Exit.OK, done.stderr
    report = json.loads(done.stdout)
    assert report["stream"]["frames_per_s"] > 0
    assert report["pingpong"]["round_trips"] > 0


@pytest.mark.usefixtures("need_root")
def test_a_missing_plugin_is_named() -> None:
    done = harpctl("bench", "lat", "--plugin", "/nonexistent/plugin.so")
    assert done.returncode == Exit.MISSING
    assert "/nonexistent/plugin.so" in done.stderr
