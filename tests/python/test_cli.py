# SPDX-License-Identifier: Apache-2.0
"""harpctl's output, messages and exit codes."""

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
from harp.cli.options import WIDE
from harp.demo import run as demo
from harp.errors import Exit, HarpError
from harp.lab import LabOptions, memif
from harp.lab.team import Team

SEVERITIES = ("ok", "warn", "fail")
SLOW = {"matplotlib", "numpy", "pyroute2", "scapy"}


def imported_packages(*arguments: str, **environ: str) -> set[str]:
    """Return the packages that harpctl imports with these arguments."""
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


def all_commands() -> list[str]:
    """Return the paths of all commands and groups, such as `harpctl bench loss`."""
    context = click.Context(cli, info_name="harpctl")
    leaves = [path for path, _ in manual.leaves(cli, context)]
    groups = {path.rpartition(" ")[0] for path in leaves}
    return sorted({*leaves, *groups})


@pytest.mark.parametrize("path", all_commands())
def test_help_has_an_example(path: str) -> None:
    done = CliRunner().invoke(cli, [*path.split()[1:], "--help"], prog_name="harpctl")
    assert done.exit_code == Exit.OK
    usage, _, rest = done.stdout.partition("\n")
    assert usage.startswith(f"Usage: {path} ")
    assert re.search(rf"^ +{path}( |$)", rest, re.MULTILINE), "no example"


@pytest.mark.parametrize("path", all_commands())
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
    """Return every command with a path parameter, and arguments that set it to an empty string."""
    leaves = manual.leaves(cli, click.Context(cli, info_name="harpctl"))
    result = []
    for path, command in leaves:
        for param in command.params:
            if isinstance(param.type, click.Path):
                is_option = isinstance(param, click.Option)
                before = ["x"] if param.name == "file" and path == "harpctl trace" else []
                arguments = [param.opts[0], ""] if is_option else [*before, ""]
                result.append((path, command, arguments))
    return result


@pytest.mark.parametrize(
    ("path", "command", "arguments"),
    [pytest.param(*case, id=f"{case[0]} {case[2][0]}") for case in file_parameters()],
)
def test_an_empty_path_is_an_error(path: str, command: click.Command, arguments: list[str]) -> None:
    """An unset shell variable selects neither the default nor the current directory."""
    with pytest.raises(click.BadParameter, match="the name is empty"):
        command.make_context(path, arguments)


def test_the_help_lists_every_command_and_truncates_nothing() -> None:
    for arguments in ([], ["bench"], ["config"]):
        text = harpctl(*arguments, "--help").stdout
        assert "..." not in text.partition("Options:")[2]
    text = " ".join(harpctl("--help").stdout.split())
    assert isinstance(cli, Group)
    for name in COMMANDS:
        assert f"{name} {cli.summary(click.Context(cli), name)}" in text
    assert all(f"{title}:" in text for title in SECTIONS)


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["statsu"], "stats"),
        (["bench", "nlcc"], "nccl"),
        (["config", "shwo"], "show"),
        (["config", "show", "tcp.enc"], "tcp.ecn"),
        (["check", "lo", "--verbsoe"], "--verbose"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistyped_word_has_a_suggestion(arguments: list[str], suggestion: str) -> None:
    done = harpctl(*arguments)
    assert done.returncode == Exit.USAGE
    assert re.search(rf"[Dd]id you mean '?{suggestion}'?\?", done.stderr), done.stderr


@pytest.mark.parametrize(
    ("line", "completions"),
    [
        ("harpctl sta", ["start", "stats", "status"]),
        ("harpctl check l", ["lo"]),
        ("harpctl config show tcp.ec", ["tcp.ecn"]),
        ("harpctl run --set tcp.ecn=o", ["tcp.ecn=off"]),
    ],
)
def test_values_are_completed(line: str, completions: list[str]) -> None:
    last = str(len(line.split()) - 1)
    shell = {"_HARPCTL_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": last}
    rows = harpctl(**shell).stdout.splitlines()
    assert set(completions) <= {row.partition(",")[2] for row in rows}, rows


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


@pytest.mark.usefixtures("need_root")
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("logs --file {}/harp.toml", Exit.PRIVILEGE),
        ("report {}/x.tar.gz", Exit.PRIVILEGE),
        ("trace {}", Exit.PRIVILEGE),
        ("tune --profile {}/x", Exit.PRIVILEGE),
        ("tune --explain allreduce 1M 8 --profile {}/x", Exit.PRIVILEGE),
        ("uninstall --prefix {}", Exit.PRIVILEGE),
        ("env --plugin {}/x", Exit.PRIVILEGE),
        ("run -- {}/x", Exit.NOT_EXECUTABLE),
    ],
)
def test_a_directory_that_only_root_may_search(command: str, code: Exit, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    done = harpctl_without_root(*command.format(tmp_path / "closed").split())
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert f"harpctl: {tmp_path}/closed" in done.stderr
    assert ("run as root" if code is Exit.PRIVILEGE else "chmod +x") in done.stderr


def test_versions_of_all_components_are_printed() -> None:
    versions = json.loads(harpctl("version", "-o", "json").stdout)
    assert versions["harp"]["value"] == __version__
    assert versions["plugin_abi"]["value"] == [6, 7, 8, 9, 10, 11, 12]
    assert versions["kernel"]["value"] == os.uname().release
    for entry in versions.values():
        assert entry["value"] or entry["why"]
    text = harpctl("version").stdout
    assert len(text.splitlines()) == len(versions)
    assert "v11, v12" in text


def test_a_report_contains_no_secrets(tmp_path: Path) -> None:
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
    assert str(key) in texts["report/config.json"], "the file's name is not secret"
    assert not [name for name, text in texts.items() if secret in text]
    second = harpctl("report", str(path))
    assert second.returncode == Exit.FAILURE
    assert "File exists" in second.stderr


def test_a_report_creates_no_directory(tmp_path: Path) -> None:
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
def test_a_full_disk_is_an_error_and_no_file_remains(
    command: str, name: str, tmp_path: Path
) -> None:
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
    done = harpctl("logs", "--file", str(toml))
    assert done.returncode == Exit.MISSING
    assert "harpctl start" in done.stderr
    log.write_text("".join(f"line {n}\n" for n in range(300)))
    assert harpctl("logs", "--file", str(toml), "-n", "2").stdout == "line 298\nline 299\n"
    command = [*COMMAND, "logs", "--follow", "-n", "1", "--file", toml]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "line 299\n"
        with log.open("a") as file:
            file.write("a new one\n")
        assert process.stdout.readline() == "a new one\n"
        process.terminate()


def test_a_log_that_is_not_a_file_is_an_error(tmp_path: Path) -> None:
    toml = tmp_path / "harp.toml"
    toml.write_text(f'[daemon]\nrun_dir = "{tmp_path}"\n')
    os.mkfifo(tmp_path / "harpd.log")
    done = harpctl("logs", "--file", str(toml))
    assert done.returncode == Exit.FAILURE
    assert "harpd.log is not a regular file; remove it" in done.stderr


def test_a_wide_table_is_not_truncated(capsys: pytest.CaptureFixture[str]) -> None:
    """Its lines may be longer than the terminal is wide."""
    columns, row = [f"column {n}" for n in range(40)], [f"{n}.123 [4.5, 6.7]" for n in range(40)]
    output.print_table(columns, [row])
    head, line = capsys.readouterr().out.splitlines()
    assert len(line) > 120
    assert [head.split("  ")[0], *line.split("  ")] == [columns[0], *row]


def test_text_is_printed_literally(capsys: pytest.CaptureFixture[str]) -> None:
    """rich replaces :b: by an emoji, and removes [b]."""
    text = "fd00:b::1 [b]"
    for console in (output.out, WIDE):
        output.print_line(text, console)
        output.print_whole(output.table(text, [text], [[text]]), console)
    assert capsys.readouterr().out.split() == text.split() * 8
    assert harpctl("config", "show", "--file", "/:b:/[b]").stderr.startswith("harpctl: /:b:/[b]: ")


def on_terminal(columns: int, *arguments: str) -> tuple[int, str]:
    """Run harpctl on a terminal with this number of columns. Return exit code and output."""
    controller, terminal = os.openpty()
    env = {**os.environ, "TERM": "dumb", "COLUMNS": str(columns), "LINES": "40"}
    command = [*COMMAND, *arguments]
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=env
    ) as process:
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # EIO: harpctl has closed the terminal
            while more := os.read(controller, 65536):
                shown += more
        os.close(controller)
    return process.returncode, shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [20, 80])
def test_keys_are_not_truncated_on_narrow_terminals(columns: int) -> None:
    code, shown = on_terminal(columns, "config", "show", "--all")
    assert code == Exit.OK
    rows = json.loads(harpctl("config", "show", "-o", "json").stdout)["settings"]
    names = {line.split(" ")[0] for line in shown.splitlines()}
    assert not {row["key"] for row in rows} - names
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown


def test_a_missing_module_breaks_only_its_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(COMMANDS, "bench", "no_such_module")
    context = click.Context(cli, info_name="harpctl")
    broken = cli.get_command(context, "bench")
    assert broken is not None
    with pytest.raises(HarpError, match=r"bench can't be used: No module named .*make build"):
        broken.main(["idle", "--help"], standalone_mode=False)
    assert "check" in cli.get_help(context)


def test_every_listed_command_can_be_loaded() -> None:
    for name, module in COMMANDS.items():
        context = click.Context(cli, info_name="harpctl")
        command = cli.get_command(context, name)
        assert command is not None, module
        assert command.name == name
        assert command.help is not None
        assert isinstance(cli, Group)
        assert cli.summary(context, name) == Group.summary(cli, context, name)


@pytest.mark.parametrize(
    ("command", "allowed"),
    [
        ("--help", set()),
        ("config show", set()),
        ("flows", {"numpy"}),
        ("run --help", set()),
        ("stats", {"numpy"}),
        ("status", set()),
    ],
)
def test_only_commands_that_need_slow_packages_import_them(command: str, allowed: set[str]) -> None:
    assert imported_packages(*command.split()) & SLOW <= allowed


def test_a_command_is_completed_without_its_module() -> None:
    shell = {"_HARPCTL_COMPLETE": "bash_complete", "COMP_WORDS": "harpctl sta", "COMP_CWORD": "1"}
    assert not imported_packages(**shell) & SLOW


@pytest.mark.parametrize(
    "command",
    [
        ["nonsense"],
        ["check", "lo", "--queue", "-1"],
        ["check", "lo", "--queue", "4294967295"],
        ["logs", "--lines", "99999999999999999999"],
        ["stats", "--watch", "--interval", "1e308"],
        ["tune", "a..b", "--token", "x"],
        ["demo", "--hosts", "9"],
        ["demo", "--mtu", "12"],
        ["bench", "idle", "--path", "pigeon"],
        ["bench", "idle", "--timeout", "nan"],
        ["bench", "loss", "--loss", "99"],
    ],
    ids=" ".join,
)
def test_bad_usage_exits_with_2(command: list[str]) -> None:
    done = harpctl(*command)
    assert done.returncode == Exit.USAGE
    assert "Traceback" not in done.stderr


def float_options() -> list[tuple[str, click.Command, str]]:
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
    [pytest.param(*case, id=f"{case[0]} {case[2]}") for case in float_options()],
)
def test_numbers_must_be_finite(
    path: str, command: click.Command, option: str, number: str
) -> None:
    """A plain click.FLOAT or FloatRange would accept some of these."""
    pattern = r"is not a finite number|is not in the range"
    with pytest.raises(click.BadParameter, match=pattern) as error:
        command.make_context(path, [option, number])
    assert error.value.exit_code == Exit.USAGE
    message = error.value.format_message()
    assert message.startswith(f"Invalid value for '{option}'")
    assert "\n" not in message


def test_check_of_an_unknown_interface_lists_the_known_ones() -> None:
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
def test_demo_ranks_agree(path: str, family: tuple[str, ...]) -> None:
    done = harpctl("demo", "--epochs", "2", "--path", path, *family, "-o", "json")
    assert done.returncode == Exit.OK, done.stderr
    report = json.loads(done.stdout)
    verdict = report["verdict"]
    assert verdict["agree"]
    assert verdict["ranks_equal_bit_for_bit"]
    assert verdict["alone_equal_bit_for_bit"]
    for rank in report["ranks"]:
        # veth has only generic XDP, which auto does not use.
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
    assert all(float(time) > 0 for time in times.groups())
    done = harpctl("demo", "--epochs", "1", "--baseline", "--ipv6")
    assert done.returncode == Exit.USAGE
    assert "omit --ipv6" in done.stderr


def test_demo_prints_times_and_speed_of_one_round() -> None:
    # The medians are 3 ms and 4 ms, which do not belong to the median speed of 0.8.
    rounds = [(0.001, 0.006), (0.005, 0.004), (0.003, 0.001)]
    sockets = {
        "rounds": [{"harp_seconds": harp, "sockets_seconds": other} for harp, other in rounds],
        "speed": sorted(other / harp for harp, other in rounds),
    }
    (line,) = demo.transport_lines({"ranks": [], "options": {}, "sockets": sockets})
    assert "HARP 5.00 ms" in line
    assert "them 4.00 ms. HARP's speed: 0.80 times" in line
    assert "(0.33 to 6.00; the median of 3 alternated rounds)" in line


@pytest.mark.parametrize(("ranks", "text"), [(2, "DIFFERS by 1.0e-06"), (3, "tolerance 1e-04")])
def test_demo_has_no_tolerance_for_two_ranks(ranks: int, text: str) -> None:
    verdict = {
        "weights": 9,
        "ranks_equal_bit_for_bit": True,
        "difference_relative": 1e-6,
        "tolerance_relative": demo.TOLERANCE,
        "alone_equal_bit_for_bit": False,
        "agree": ranks > 2,
    }
    lines = demo.verdict_lines(verdict, ranks)
    assert text in lines[1]
    assert ("tolerance" in lines[1]) == (ranks > 2)


def test_memif_without_dpdk_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("harp.dpdk")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "harp._dpdk", None)
    with pytest.raises(HarpError, match="built without DPDK") as caught:
        memif.check(2, "auto")
    assert caught.value.code == Exit.MISSING


def test_horovod_without_torch_is_a_one_line_error() -> None:
    code = "import runpy, sys; sys.modules['torch'] = None; runpy._run_module_as_main(sys.argv[1])"
    done = finished([sys.executable, "-c", code, "harp.horovod"])
    assert "pip install 'harp-nccl[torch]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_demo_lets_user_nobody_write_only_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_demo_runs_on_four_hosts() -> None:
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
