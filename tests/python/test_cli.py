# SPDX-License-Identifier: Apache-2.0
"""harpctl as a script sees it: output, messages and exit codes."""

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from harpctl import COMMAND, harpctl, harpctl_without_root
from programs import finished

from harp import __version__, output
from harp._core import version
from harp.cli import COMMANDS, SECTIONS, cli, manual
from harp.cli.group import Group
from harp.demo import run as demo
from harp.errors import Exit, HarpError
from harp.lab import LabOptions, memif
from harp.lab.team import Team

SEVERITIES = ("ok", "warn", "fail")
SLOW = {"matplotlib", "numpy", "pyroute2", "scapy"}


def imported(*arguments: str, **environ: str) -> set[str]:
    """The packages that a harpctl with these arguments imports."""
    done = harpctl(*arguments, PYTHONPROFILEIMPORTTIME="1", **environ)
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
    """Paths of all commands and groups: harpctl, harpctl bench, harpctl bench loss ..."""
    context = click.Context(cli, info_name="harpctl")
    leaves = [path for path, _ in manual.leaves(cli, context)]
    groups = {path.rpartition(" ")[0] for path in leaves}
    return sorted({*leaves, *groups})


@pytest.mark.parametrize("path", every_command())
def test_help_has_an_example(path: str) -> None:
    done = CliRunner().invoke(cli, [*path.split()[1:], "--help"], prog_name="harpctl")
    assert done.exit_code == Exit.OK
    usage, _, rest = done.stdout.partition("\n")
    assert usage.startswith(f"Usage: {path} ")
    assert re.search(rf"^ +{path}( |$)", rest, re.MULTILINE), "no example"


@pytest.mark.parametrize("path", every_command())
def test_help_fits_80_columns_and_explains_every_option(path: str) -> None:
    arguments = [*path.split()[1:], "--help"]
    text = CliRunner().invoke(cli, arguments, prog_name="harpctl", terminal_width=80).stdout
    assert not [line for line in text.splitlines() if len(line) > 80]
    command, context = cli, click.Context(cli)
    for name in path.split()[1:]:
        child = command.get_command(context, name)
        assert child is not None
        command = child
    for option in command.get_params(context):
        if isinstance(option, click.Option):
            assert option.help, option.opts


def file_parameters() -> list[tuple[str, click.Command, list[str]]]:
    """Every parameter of every command that is a path, as an empty shell variable gives it."""
    leaves = manual.leaves(cli, click.Context(cli, info_name="harpctl"))
    found = []
    for path, command in leaves:
        for each in command.params:
            if isinstance(each.type, click.Path):
                option = isinstance(each, click.Option)
                before = ["x"] if each.name == "file" and path == "harpctl trace" else []
                found.append((path, command, [each.opts[0], ""] if option else [*before, ""]))
    return found


@pytest.mark.parametrize(
    ("path", "command", "arguments"),
    [pytest.param(*each, id=f"{each[0]} {each[2][0]}") for each in file_parameters()],
)
def test_an_empty_path_is_an_error(path: str, command: click.Command, arguments: list[str]) -> None:
    """An unset shell variable must select neither the default nor the current directory."""
    with pytest.raises(click.BadParameter, match="the name is empty"):
        command.make_context(path, arguments)


def test_the_help_lists_every_command_once_in_a_section_and_cuts_nothing() -> None:
    for arguments in ([], ["bench"], ["config"]):
        text = harpctl(*arguments, "--help").stdout
        assert "..." not in text.partition("Options:")[2]
    text = " ".join(harpctl("--help").stdout.split())
    assert isinstance(cli, Group)
    for name in COMMANDS:
        assert f"{name} {cli.summary(click.Context(cli), name)}" in text
    assert all(f"{title}:" in text for title in SECTIONS)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["statsu"], "stats"),
        (["bench", "nlcc"], "nccl"),
        (["config", "shwo"], "show"),
        (["config", "show", "tcp.enc"], "tcp.ecn"),
        (["check", "lo", "--verbsoe"], "--verbose"),
    ],
    ids=lambda typed: " ".join(typed) if isinstance(typed, list) else "",
)
def test_a_mistyped_word_has_a_suggestion(typed: list[str], meant: str) -> None:
    done = harpctl(*typed)
    assert done.returncode == Exit.USAGE
    assert re.search(rf"[Dd]id you mean '?{meant}'?\?", done.stderr), done.stderr


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("harpctl sta", ["start", "stats", "status"]),
        ("harpctl check l", ["lo"]),
        ("harpctl config show tcp.ec", ["tcp.ecn"]),
        ("harpctl run --set tcp.ecn=o", ["tcp.ecn=off"]),
    ],
)
def test_values_are_completed(typed: str, completed: list[str]) -> None:
    last = str(len(typed.split()) - 1)
    shell = {"_HARPCTL_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": last}
    lines = harpctl(**shell).stdout.splitlines()
    assert set(completed) <= {line.partition(",")[2] for line in lines}, lines


@pytest.mark.usefixtures("need_root")
@pytest.mark.parametrize(
    "command",
    [
        *("start", "demo", "bench idle", "config init", "stats", "tune --port 7999", "install"),
    ],
)
def test_without_root_the_exit_code_is_3(command: str) -> None:
    done = harpctl_without_root(*command.split())
    assert done.returncode == Exit.PRIVILEGE, done.stderr
    assert "run as root" in done.stderr
    assert "Traceback" not in done.stderr


def test_versions_of_everything_are_printed() -> None:
    found = json.loads(harpctl("version", "-o", "json").stdout)
    assert found["harp"]["value"] == __version__
    assert found["plugin_abi"]["value"] == [6, 7, 8, 9, 10, 11, 12]
    assert found["kernel"]["value"] == os.uname().release
    for part in found.values():
        assert part["value"] or part["why"]
    text = harpctl("version").stdout
    assert len(text.splitlines()) == len(found)
    assert "v11, v12" in text


def test_a_report_has_everything_but_secrets(tmp_path: Path) -> None:
    key, secret = tmp_path / "key", "5ec2e7" * 10 + "1234"
    key.write_text(secret)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/harpd.log").write_text("one line of the log\n")
    toml = tmp_path / "harp.toml"
    toml.write_text(f'[lanes]\nkey_file = "{key}"\n[daemon]\nrun_dir = "{tmp_path}/run"\n')
    path = tmp_path / "report.tar.gz"
    done = harpctl("report", str(path), HARP_CONFIG=str(toml))
    assert done.returncode == Exit.OK, done.stderr
    assert "status.json is left out: no harpd" in done.stderr
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        texts = {}
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None
            texts[member.name] = file.read().decode()
    names = {"version", "check", "config", "stats", "errors"}
    assert texts.keys() == {f"report/{name}.json" for name in names} | {"report/harpd.log"}
    assert texts["report/harpd.log"] == "one line of the log\n"
    assert str(key) in texts["report/config.json"], "the file's name is no secret"
    assert not [name for name, text in texts.items() if secret in text]
    again = harpctl("report", str(path))
    assert again.returncode == Exit.FAILURE
    assert "File exists" in again.stderr


def test_a_report_makes_no_directory(tmp_path: Path) -> None:
    folder = tmp_path / "absent"
    done = harpctl("report", str(folder / "report.tar.gz"))
    assert done.returncode == Exit.MISSING
    assert done.stderr == (
        f"harpctl: {folder}/report.tar.gz can't be written: {folder} is not a directory; make it "
        "first\n"
    )
    assert not folder.exists()


@pytest.mark.usefixtures("need_root")
@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("report", "report.tar.gz"),
        ("config init --file", "harp.toml"),
        ("man --directory", "man"),
        ("install --prefix", "prefix"),
    ],
)
def test_a_full_disk_is_named_and_nothing_is_left(command: str, name: str, tmp_path: Path) -> None:
    script = (
        f"mount -t tmpfs -o size=4k tmpfs {tmp_path}; head -c 4096 /dev/zero > {tmp_path}/fill;"
        f' "$@"; code=$?; find {tmp_path} -type f; exit $code'
    )
    arguments = [*command.split(), str(tmp_path / name)]
    done = finished(["unshare", "--mount", "sh", "-c", script, "sh", *COMMAND, *arguments])
    assert done.returncode == Exit.FAILURE
    pattern = rf"harpctl: {tmp_path / name}\S* can't be written: No space left on device\n"
    assert re.fullmatch(pattern, done.stderr), done.stderr
    assert done.stdout.split() == [f"{tmp_path}/fill"]


def test_logs_prints_the_last_lines(tmp_path: Path) -> None:
    toml = tmp_path / "harp.toml"
    toml.write_text(f'[daemon]\nrun_dir = "{tmp_path}"\n')
    log = tmp_path / "harpd.log"
    none = harpctl("logs", "--file", str(toml))
    assert none.returncode == Exit.MISSING
    assert "harpctl start" in none.stderr
    log.write_text("".join(f"line {n}\n" for n in range(300)))
    assert harpctl("logs", "--file", str(toml), "-n", "2").stdout == "line 298\nline 299\n"
    command = [*COMMAND, "logs", "--follow", "-n", "1", "--file", toml]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "line 299\n"
        with log.open("a") as file:
            file.write("a new one\n")
        assert process.stdout.readline() == "a new one\n"
        process.terminate()


def test_a_table_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """However many columns, and however narrow what it is printed on."""
    columns, row = [f"column {n}" for n in range(40)], [f"{n}.123 [4.5, 6.7]" for n in range(40)]
    output.print_table(columns, [row])
    head, line = capsys.readouterr().out.splitlines()
    assert len(line) > 120
    assert [head.split("  ")[0], *line.split("  ")] == [columns[0], *row]


def on_terminal(columns: int, *arguments: str) -> tuple[int, str]:
    """Run harpctl on a terminal with this number of columns: its exit code, and what it shows."""
    ours, its = os.openpty()
    env = {**os.environ, "TERM": "dumb", "COLUMNS": str(columns), "LINES": "40"}
    command = [*COMMAND, *arguments]
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=env) as process:
        os.close(its)
        shown = b""
        with contextlib.suppress(OSError):  # EIO: its last one is closed
            while more := os.read(ours, 65536):
                shown += more
        os.close(ours)
    return process.returncode, shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [20, 80])
def test_a_key_is_whole_on_every_terminal(columns: int) -> None:
    code, shown = on_terminal(columns, "config", "show", "--all")
    assert code == Exit.OK
    rows = json.loads(harpctl("config", "show", "-o", "json").stdout)["settings"]
    words = {line.split(" ")[0] for line in shown.splitlines()}
    assert not {row["key"] for row in rows} - words
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown


def test_a_command_that_lacks_a_module_says_so_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(COMMANDS, "bench", "no_such_module")
    context = click.Context(cli, info_name="harpctl")
    broken = cli.get_command(context, "bench")
    assert broken is not None
    with pytest.raises(HarpError, match=r"bench can't be used: No module named .*make build"):
        broken.main(["idle", "--help"], standalone_mode=False)
    assert "check" in cli.get_help(context)


def test_every_command_of_the_list_is_there() -> None:
    for name, module in COMMANDS.items():
        context = click.Context(cli, info_name="harpctl")
        command = cli.get_command(context, name)
        assert command is not None, module
        assert command.name == name
        assert command.help is not None
        assert isinstance(cli, Group)
        assert cli.summary(context, name) == Group.summary(cli, context, name)


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        ("--help", set()),
        ("config show", set()),
        ("flows", {"numpy"}),
        ("run --help", set()),
        ("stats", {"numpy"}),
        ("status", set()),
    ],
)
def test_slow_imports_are_left_to_the_commands_that_need_them(
    command: str, needed: set[str]
) -> None:
    assert imported(*command.split()) & SLOW <= needed


def test_a_command_is_completed_without_its_module() -> None:
    typed = {"_HARPCTL_COMPLETE": "bash_complete", "COMP_WORDS": "harpctl sta", "COMP_CWORD": "1"}
    assert not imported(**typed) & SLOW


@pytest.mark.parametrize(
    "command",
    [
        ["nonsense"],
        ["check", "lo", "--queue", "-1"],
        ["demo", "--hosts", "9"],
        ["demo", "--mtu", "12"],
        ["bench", "idle", "--path", "pigeon"],
        ["bench", "idle", "--timeout", "nan"],
        ["bench", "loss", "--loss", "99"],
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


@pytest.mark.parametrize("number", ["nan", "-inf", "1e999"])
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
    worst = max((item["severity"] for item in report["findings"]), key=SEVERITIES.index)
    assert report["severity"] == worst
    assert worst == "fail", "the plugin never uses HARP on lo"
    assert done.returncode == Exit.FAILURE


@pytest.mark.sample("kernel-IPv4", "auto-IPv6", "xdp-IPv4")
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
    assert verdict["alone_equal_bit_for_bit"]
    for rank in report["ranks"]:
        # On veth only a generic program could be attached: auto leaves that alone.
        assert ("kernel TCP" in rank["path"]) == (path != "xdp")
        assert rank["sent_bytes"] > 1e6
        assert rank["counters"]["tx_packets"] > 0


@pytest.mark.usefixtures("need_root")
def test_demo_compares_with_kernel_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "BASELINE_ROUNDS", 2)
    done = CliRunner().invoke(cli, ["demo", "--epochs", "1", "--baseline"])
    assert done.exit_code == Exit.OK, done.stderr
    times = re.search(r"per epoch: HARP ([\d.]+) ms, kernel .* them ([\d.]+) ms", done.stdout)
    assert times, done.stdout
    assert all(float(each) > 0 for each in times.groups())
    done = harpctl("demo", "--epochs", "1", "--baseline", "--ipv6")
    assert done.returncode == Exit.USAGE
    assert "leave --ipv6 out" in done.stderr


def test_demo_prints_times_and_speed_of_one_round() -> None:
    # Medians of the times would say 3 ms and 4 ms, and the median of the speeds 0.8.
    rounds = [(0.001, 0.006), (0.005, 0.004), (0.003, 0.001)]
    sockets = {
        "rounds": [{"harp_seconds": harp, "sockets_seconds": other} for harp, other in rounds],
        "speed": sorted(other / harp for harp, other in rounds),
    }
    (line,) = demo.transport_lines({"ranks": [], "options": {}, "sockets": sockets})
    assert "HARP 5.00 ms" in line
    assert "them 4.00 ms. HARP's speed: 0.80 times" in line
    assert "(0.33 to 6.00; the median of 3 alternated rounds)" in line


@pytest.mark.parametrize(("ranks", "words"), [(2, "DIFFERS by 1.0e-06"), (3, "tolerance 1e-04")])
def test_demo_has_no_tolerance_for_two_ranks(ranks: int, words: str) -> None:
    verdict = {
        "weights": 9,
        "ranks_equal_bit_for_bit": True,
        "difference_relative": 1e-6,
        "tolerance_relative": demo.TOLERANCE,
        "alone_equal_bit_for_bit": False,
        "agree": ranks > 2,
    }
    lines = demo.verdict_lines(verdict, ranks)
    assert words in lines[1]
    assert ("tolerance" in lines[1]) == (ranks > 2)


def test_memif_without_dpdk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("harp.dpdk")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "harp._dpdk", None)
    with pytest.raises(HarpError, match="built without DPDK") as caught:
        memif.check(2, "auto")
    assert caught.value.code == Exit.MISSING


def test_horovod_without_torch_is_one_line() -> None:
    code = "import runpy, sys; sys.modules['torch'] = None; runpy._run_module_as_main(sys.argv[1])"
    done = finished([sys.executable, "-c", code, "harp.horovod"])
    assert "pip install 'harp-nccl[torch]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_demo_lets_nobody_write_the_weights_only(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = {}

    def follow(_options: Any, _lab: Any, _daemons: Any, team: Team, _on_epoch: Any) -> Any:
        folders = (team.folder, team.folder / demo.WEIGHTS)
        modes.update({folder.name: stat.S_IMODE(folder.stat().st_mode) for folder in folders})
        return [], 0.0

    monkeypatch.setattr(demo, "Lab", lambda _options: contextlib.nullcontext())
    monkeypatch.setattr(demo, "_daemons", lambda *_: [None])
    monkeypatch.setattr(demo, "_follow", follow)
    monkeypatch.setattr(demo, "compare", lambda *_: {})
    with pytest.raises(IndexError):  # there are no ranks to report
        demo.run(demo.DemoOptions(lab=LabOptions(), daemon=True))
    assert list(modes.values()) == [0o700, 0o1777]


COMPARING = """
import contextlib, signal, sys
from harp.cli import main
from harp.demo import run

def compare(_options, folder):
    print(folder, flush=True)
    signal.pause()

run.Lab = lambda _options: contextlib.nullcontext()
run._follow = lambda *_: ([], 0.0)
run.compare = compare
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
sys.argv = ["harpctl", "demo", "-o", "json"]
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_after_the_training_leaves_nothing(number: signal.Signals) -> None:
    command, pipe = [sys.executable, "-c", COMPARING], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert folder.is_dir()
        process.send_signal(number)
        process.communicate(timeout=20)
    assert not folder.exists()


STARTING = """
import signal, sys
from harp.cli import daemon, main

def wait(process, ready):
    ready.recv(4096)
    print(process.pid, flush=True)
    signal.pause()

daemon._wait_ready = wait
sys.argv = ["harpctl", "start", "--file", sys.argv[1]]
main()
"""


@pytest.mark.usefixtures("need_root")
def test_an_interrupted_start_ends_harpd(tmp_path: Path) -> None:
    toml = tmp_path / "harp.toml"
    toml.write_text(f'[daemon]\nrun_dir = "{tmp_path}/run"\n[metrics]\nport = 0\n')
    command, pipe = [sys.executable, "-c", STARTING, str(toml)], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == Exit.INTERRUPTED
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.usefixtures("need_root")
def test_demo_on_a_bridge_of_four() -> None:
    done = harpctl("demo", "--epochs", "1", "--hosts", "4", "--mtu", "9000", "-o", "json")
    assert done.returncode == Exit.OK, done.stderr
    report = json.loads(done.stdout)
    assert report["verdict"]["agree"]
    assert len(report["ranks"]) == 4


@pytest.mark.sample("IPv6")
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
    done = harpctl("bench", "idle", "--plugin", "/nonexistent/plugin.so")
    assert done.returncode == Exit.MISSING
    assert "/nonexistent/plugin.so" in done.stderr
