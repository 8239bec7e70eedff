# SPDX-License-Identifier: Apache-2.0
"""harpctl env and run: a job's environment, and a command that harpctl does not affect."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harpctl import COMMAND, harpctl
from programs import finished

import harp
from harp import _paths
from harp.config import jobs
from harp.errors import Exit, HarpError

PLUGIN = str(_paths.plugin().resolve())


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "harp.toml"
    path.write_text(
        '[job]\nframes = 1024\npath = "auto"\nifname = "=it\'s"\n[drive]\nbackground_idle_us = 20\n'
    )
    return str(path)


def variables(*arguments: str, **environ: str) -> dict[str, str]:
    done = harpctl("env", "-o", "json", *arguments, **environ)
    assert done.returncode == Exit.OK, done.stderr
    return json.loads(done.stdout)


def test_env_has_nccls_variables_and_settings_other_than_defaults(file: str) -> None:
    expected = {
        "NCCL_NET_PLUGIN": "harp",
        "LD_LIBRARY_PATH": str(Path(PLUGIN).parent),
        "NCCL_NET": "HARP",
        "HARP_BACKGROUND_IDLE_US": "20",
        "HARP_FRAMES": "1024",
        "HARP_IFNAME": "=it's",
    }
    assert variables(HARP_CONFIG=file) == expected
    assert variables("--file", file) == expected


def test_env_does_not_change_variables_that_are_set(file: str) -> None:
    env = variables("--file", file, HARP_FRAMES="2048", HARP_BACKGROUND_IDLE_US="")
    assert "HARP_FRAMES" not in env
    assert env["HARP_BACKGROUND_IDLE_US"] == "20", "an empty variable counts as unset"


def test_the_command_line_overrides_variables(file: str) -> None:
    env = variables("--file", file, "-s", "job.path=auto", "-s", "frames=4096", HARP_PATH="xdp")
    assert (env["HARP_PATH"], env["HARP_FRAMES"]) == ("auto", "4096")


def test_env_names_a_socket_that_jobs_would_not_find(tmp_path: Path) -> None:
    path = tmp_path / "harp.toml"
    path.write_text('[daemon]\nrun_dir = "/run/other"\n')
    assert variables("--file", str(path))["HARP_SOCKET"] == "/run/other/harpd.sock"
    path.write_text('[daemon]\nrun_dir = "/run/other"\nsocket = "/tmp/s"\n')
    assert variables("--file", str(path))["HARP_SOCKET"] == "/tmp/s"
    path.write_text("[daemon]\nleases_per_uid = 1\n")
    assert "HARP_SOCKET" not in variables("--file", str(path))


def test_shell_lines_set_the_variables(file: str) -> None:
    lines = harpctl("env", "--file", file).stdout
    assert lines == harpctl("env", "--file", file, "-o", "shell").stdout
    code = f"{lines}\nexec env -0"
    done = finished(["sh", "-c", code], env={}, check=True)
    env = dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry)
    expected = variables("--file", file)
    assert {name: env[name] for name in expected} == expected


def test_plain_lines_are_not_quoted(file: str) -> None:
    lines = harpctl("env", "--file", file, "-o", "plain").stdout.splitlines()
    assert dict(line.split("=", 1) for line in lines) == variables("--file", file)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-s", "nothing"], Exit.USAGE, "is not KEY=VALUE"),
        (["-s", "=1"], Exit.USAGE, "is not KEY=VALUE"),
        (["-s", "tcp.ecm=off"], Exit.USAGE, "did you mean tcp.ecn?"),
        (["-s", "frames=1"], Exit.USAGE, "command line: job.frames"),
        (["--plugin", "/nonexistent.so"], Exit.MISSING, "/nonexistent.so"),
        (["--file", "/nonexistent.toml"], Exit.MISSING, "/nonexistent.toml"),
        (["--file", ""], Exit.USAGE, "the name is empty"),
    ],
    ids=str,
)
def test_bad_options_stop_env_and_run(arguments: list[str], code: Exit, message: str) -> None:
    for command in (["env", *arguments], ["run", *arguments, "--", "echo", "ran"]):
        done = harpctl(*command)
        assert done.returncode == code
        assert message in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""


# --------------------------------------------------------------------------------------------------
# The plugin's path.
#
def test_the_plugin_is_named_without_its_path() -> None:
    for path in (Path("/a,b/libnccl-net-harp.so"), Path("/" + "x" * 250 + "/libnccl-net-harp.so")):
        env = jobs.plugin_variables(path, {"LD_LIBRARY_PATH": "/usr/lib/x"})
        assert env["NCCL_NET_PLUGIN"] == "harp"
        assert env["LD_LIBRARY_PATH"] == f"{path.parent}:/usr/lib/x"


def test_a_plugin_with_another_name_is_named_by_path() -> None:
    for path in ("/a/other.so", "/a:b/libnccl-net-harp.so"):
        env = jobs.plugin_variables(Path(path), {})
        assert env == {"NCCL_NET_PLUGIN": path, "NCCL_NET": "HARP"}


def test_a_path_that_variables_cannot_express_is_an_error() -> None:
    with pytest.raises(HarpError, match="rename it to libnccl-net"):
        jobs.plugin_variables(Path("/a,b/other.so"), {})
    for directory in ("/a,b:c", "/a,b;c"):
        with pytest.raises(HarpError, match="move it"):
            jobs.plugin_variables(Path(directory) / "libnccl-net-harp.so", {})


def test_the_loader_finds_the_plugin_with_the_variables() -> None:
    """As NCCL: dlopen() of the value, then of libnccl-net-VALUE.so."""
    env = variables()
    code = (
        "import ctypes, os\n"
        "value = os.environ['NCCL_NET_PLUGIN']\n"
        "try:\n"
        "    library = ctypes.CDLL(value)\n"
        "except OSError:\n"
        "    library = ctypes.CDLL(f'libnccl-net-{value}.so')\n"
        "ctypes.c_char.in_dll(library, 'ncclNetPlugin_v10')\n"
        "print([l.split()[-1] for l in open('/proc/self/maps') if 'nccl-net' in l][0])\n"
    )
    done = finished([sys.executable, "-c", code], env=env, check=True)
    assert done.stdout.strip() == PLUGIN


# --------------------------------------------------------------------------------------------------
# run
#
def test_run_sets_the_variables(file: str) -> None:
    done = harpctl("run", "--file", file, "-s", "path=kernel", "--", "env", "-0")
    assert done.returncode == 0, done.stderr
    env = dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry)
    expected = variables("--file", file) | {"HARP_PATH": "kernel"}
    assert {name: env[name] for name in expected} == expected
    assert "PATH" in env, "other variables do not change"


def test_arguments_are_passed_unchanged() -> None:
    script = "import sys; print(sys.argv[1:])"
    arguments = ["--set", "-x", "", "a b", "--", "$HOME", "é"]
    for separator in (["--"], []):
        done = harpctl("run", *separator, sys.executable, "-c", script, *arguments)
        assert done.stdout == f"{arguments}\n", done.stderr


@pytest.mark.parametrize("code", [0, 2, 255])
def test_exit_codes_pass_through(code: int) -> None:
    assert harpctl("run", "--", "sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_commands_death_by_signal_is_passed_through(number: signal.Signals) -> None:
    done = harpctl("run", "--", "sh", "-c", f"kill -{number.value} $$")
    assert done.returncode == -number


def test_signals_reach_the_command() -> None:
    """harpctl replaces itself with the command, in the same process."""
    script = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(42))\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    command = [*COMMAND, "run", "--", sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 42


def test_the_command_ignores_no_signal_that_harpctl_did_not_inherit() -> None:
    """Python ignores SIGPIPE; `yes | head` must still end."""
    show = "grep SigIgn /proc/self/status"
    direct = finished(["sh", "-c", show], check=True, restore_signals=True)
    assert harpctl("run", "--", "sh", "-c", show).stdout == direct.stdout


def test_the_command_inherits_no_descriptor() -> None:
    done = harpctl("run", "--", "ls", "/proc/self/fd")
    assert done.stdout.split() == ["0", "1", "2", "3"]  # 3: the directory that ls reads


def test_a_conflicting_variable_is_replaced_with_a_warning() -> None:
    show = 'echo "$NCCL_NET $NCCL_NET_PLUGIN"'
    done = harpctl("run", "--", "sh", "-c", show, NCCL_NET="Socket", NCCL_NET_PLUGIN="none")
    assert done.stdout == "HARP harp\n"
    assert "NCCL_NET=Socket becomes HARP" in done.stderr
    assert "NCCL_NET_PLUGIN=none becomes" in done.stderr
    assert harpctl("run", "--", "true", NCCL_NET="HARP").stderr == ""


def test_a_command_that_cannot_run_is_a_one_line_error(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/nonexistent/interpreter\n")
    script.chmod(0o755)
    data = tmp_path / "data"
    data.write_text("not executable")
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"\x7fELF" + bytes(100))
    garbage.chmod(0o755)
    for name, code, message in (
        ("no-such-command-anywhere", Exit.NOT_FOUND, "no such command"),
        (str(tmp_path / "none"), Exit.NOT_FOUND, "no such file"),
        (str(script), Exit.NOT_FOUND, "its interpreter"),
        (str(data), Exit.NOT_EXECUTABLE, "chmod +x"),
        (str(tmp_path), Exit.NOT_EXECUTABLE, "is a directory"),
        (str(garbage), Exit.NOT_EXECUTABLE, "can't be executed"),
        ("", Exit.NOT_FOUND, "name is empty"),
    ):
        done = harpctl("run", "--", name)
        assert done.returncode == code, name
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("harpctl: ")


def test_a_rank_of_the_demo_prints_why_the_plugin_fails() -> None:
    rank = ["-m", "harp.demo.rank", "--rank", "0", "--ranks", "2", "--root", "127.0.0.1:0"]
    done = harpctl("run", "--", sys.executable, *rank, HARP_IFNAME="nosuch")
    reason, error = done.stderr.splitlines()
    assert done.returncode == 1
    assert 'rank: NET/HARP: HARP_IFNAME="nosuch" selects no usable interface' in reason
    assert "failed to start" in error
    assert "log_lines()" in error


def test_run_without_a_command_is_bad_usage() -> None:
    for arguments in ([], ["--"], ["--unknown", "--", "true"]):
        done = harpctl("run", *arguments)
        assert done.returncode == Exit.USAGE


def test_a_link_to_the_plugin_is_resolved(tmp_path: Path) -> None:
    other = tmp_path / "libnccl-net-harp.so"
    other.symlink_to(PLUGIN)
    env = variables("--plugin", str(other))
    assert env["LD_LIBRARY_PATH"] == str(Path(PLUGIN).parent), (
        "libharp-xdp.so is in the target's folder"
    )


def test_python_names_the_plugin_by_path(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    for name in [name for name in os.environ if name.startswith(("HARP_", "NCCL_"))]:
        monkeypatch.delenv(name)
    # The loader of this process has already read its LD_LIBRARY_PATH.
    env = harp.env({"tcp.ecn": "off"}, file)
    assert env["NCCL_NET_PLUGIN"] == str(harp.nccl_plugin_path())
    assert (env["NCCL_NET"], env["HARP_ECN"], env["HARP_FRAMES"]) == ("HARP", "off", "1024")
    printed = variables("--file", file, "--set", "tcp.ecn=off")
    assert printed.pop("LD_LIBRARY_PATH").startswith(str(harp.nccl_plugin_path().parent))
    assert printed | {"NCCL_NET_PLUGIN": env["NCCL_NET_PLUGIN"]} == env
    with pytest.raises(HarpError, match="enc"):
        harp.env({"tcp.enc": "off"})


def test_a_traced_job_gets_a_directory_and_the_profiler(file: str, tmp_path: Path) -> None:
    env = variables("--file", file, "--trace", str(tmp_path / "new"))
    assert env["NCCL_PROFILER_PLUGIN"] == "harp"
    assert env["HARP_TRACE"] == str(tmp_path / "new")
    assert (tmp_path / "new").is_dir()
    assert variables(HARP_TRACE="/tmp")["NCCL_PROFILER_PLUGIN"] == "harp"
    assert "NCCL_PROFILER_PLUGIN" not in variables()
    assert variables("--capture", str(tmp_path))["HARP_CAPTURE"] == str(tmp_path)
    done = harpctl("env", "--trace", "/proc/none")
    assert done.returncode == Exit.FAILURE
    assert "/proc/none can't be written: " in done.stderr
