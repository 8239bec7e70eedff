# SPDX-License-Identifier: Apache-2.0
"""harpctl config and harpctl completion."""

import json
import os
import shlex
from pathlib import Path

import pytest
from harpctl import COMMAND, harpctl
from programs import finished

from harp import config
from harp.config import keys, reference, report
from harp.errors import Exit


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "harp.toml"
    path.write_text(
        '[tcp]\necn = "request"\n[[nic]]\nifname = "eth1"\nqueues = 4\n'
        'irq_affinity = "cores"\nirq_cores = [1, 2]\n'
    )
    return path


def test_show_prints_the_source_of_each_value(file: Path) -> None:
    done = harpctl("config", "show", "-o", "json", HARP_CONFIG=str(file), HARP_FRAMES="1024")
    assert done.returncode == Exit.OK, done.stderr
    shown = json.loads(done.stdout)
    rows = {row["name"]: row for row in shown["settings"]}
    assert len([row for row in rows.values() if row["of"] is None]) == len(keys.global_keys())
    ecn, frames, rail = rows["tcp.ecn"], rows["job.frames"], rows["lanes.rails"]
    assert (ecn["value"], ecn["source"], ecn["file"], ecn["line"]) == (
        "request",
        "file",
        str(file),
        2,
    )
    assert (frames["value"], frames["source"], frames["unit"]) == (1024, "environment", "frames")
    assert (rail["value"], rail["source"]) == ("backup", "default")
    assert rail["variable"] == "HARP_RAILS"
    cores = rows["nic eth1.irq_cores"]
    assert (cores["key"], cores["value"], cores["line"]) == ("nic.irq_cores", [1, 2], 7)


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["tcp.ecn"], ["tcp.ecn"]),
        (["ecn"], ["tcp.ecn"]),
        (["HARP_ECN", "frames"], ["job.frames", "tcp.ecn"]),
        (["metrics"], ["metrics.address", "metrics.port"]),
        (["eth1.queues"], ["nic eth1.queues"]),
        (["nic.queues"], ["nic eth1.queues"]),
    ],
    ids=str,
)
def test_show_prints_the_requested_keys(names: list[str], shown: list[str], file: Path) -> None:
    done = harpctl("config", "show", *names, "--file", str(file))
    assert done.returncode == Exit.OK, done.stderr
    assert sorted(line.rsplit("  ")[0].strip() for line in _lines(done.stdout)) == shown


def _lines(text: str) -> list[str]:
    names = [line.split("   ")[0] for line in text.splitlines()]
    # An empty name continues a value that is too long for its column.
    return [name for name in names if name.strip() and not name.startswith("setting")]


def test_show_of_an_unknown_key_is_bad_usage(file: Path) -> None:
    for word in ("nonsense", "eth9"):
        done = harpctl("config", "show", word, "--file", str(file))
        assert done.returncode == Exit.USAGE
        assert word in done.stderr


def test_a_good_file_is_valid(file: Path) -> None:
    done = harpctl("config", "validate", str(file))
    assert (done.returncode, done.stdout) == (Exit.OK, f"{file}: good\n")
    done = harpctl("config", "validate", str(file), "-o", "json")
    assert json.loads(done.stdout) == {"file": str(file), "problems": [], "warnings": []}


def test_validate_lists_all_problems(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text('[job]\nframes = 1\npath = "[red]"\n')
    done = harpctl("config", "validate", str(bad))
    assert done.returncode == Exit.FAILURE
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith(f"{bad}:2:1: job.frames = 1: must be")
    assert lines[1].startswith(f'{bad}:3:1: job.path = "[red]": must be')
    assert lines[2] == "2 problems"
    done = harpctl("config", "validate", str(bad), "-o", "json")
    assert done.returncode == Exit.FAILURE
    assert [p["key"] for p in json.loads(done.stdout)["problems"]] == ["job.frames", "job.path"]


def test_validate_without_a_file_checks_variables(file: Path) -> None:
    done = harpctl("config", "validate", HARP_CONFIG=str(file), HARP_ECN="x", HARP_FRAMEZ="1")
    assert done.returncode == Exit.FAILURE
    assert 'environment: HARP_ECN = "x": must be one of' in done.stdout
    done = harpctl("config", "validate", HARP_CONFIG=str(file), HARP_FRAMEZ="1")
    assert done.returncode == Exit.OK
    assert "warning: environment: HARP_FRAMEZ is unknown" in done.stderr
    done = harpctl("config", "validate", str(file), HARP_ECN="x")
    assert done.returncode == Exit.OK, "a file is validated without variables"


def test_validate_of_a_missing_file_is_an_error(tmp_path: Path) -> None:
    done = harpctl("config", "validate", str(tmp_path / "none.toml"))
    assert done.returncode == Exit.MISSING
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["show"], ["diff"]], ids=str)
def test_a_bad_file_is_an_error_with_its_lines(command: list[str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("[job]\nframes = 1\n")
    done = harpctl("config", *command, HARP_CONFIG=str(bad))
    assert done.returncode == Exit.FAILURE
    assert f"{bad}:2:1: job.frames = 1" in done.stderr
    assert done.stdout == ""


def test_init_overwrites_only_with_force(tmp_path: Path) -> None:
    target = tmp_path / "new" / "harp.toml"
    done = harpctl("config", "init", HARP_CONFIG=str(target))
    assert done.returncode == Exit.OK, done.stderr
    assert target.read_text() == reference.to_toml()
    assert target.stat().st_mode & 0o777 == 0o644
    target.write_text("mine")
    done = harpctl("config", "init", HARP_CONFIG=str(target))
    assert done.returncode == Exit.FAILURE
    assert "--force" in done.stderr
    assert target.read_text() == "mine"
    done = harpctl("config", "init", "--force", "--file", str(target))
    assert done.returncode == Exit.OK
    assert target.read_text() == reference.to_toml()
    assert [path.name for path in target.parent.iterdir()] == ["harp.toml"], (
        "no temporary file remains"
    )
    assert harpctl("config", "init", "--file", "-").stdout == reference.to_toml()


def test_init_at_an_unwritable_path_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file" / "harp.toml", Path("/proc/harp.toml"), tmp_path):
        done = harpctl("config", "init", "--force", "--file", str(target))
        assert done.returncode in (Exit.FAILURE, Exit.PRIVILEGE)
        assert done.stderr.startswith("harpctl: /")
        assert "can't be written" in done.stderr


def test_init_does_not_follow_a_dangling_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    done = harpctl("config", "init", "--file", str(tmp_path / "link"))
    assert done.returncode == Exit.FAILURE
    assert not (tmp_path / "elsewhere").exists()


def test_diff_compares_with_the_defaults(file: Path) -> None:
    done = harpctl(
        *("config", "diff", "--file", str(file)),
        HARP_FRAMES="8192",
        HARP_BACKGROUND_IDLE_US="10",
    )
    assert done.returncode == Exit.OK, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    cells = [row for row in rows if len(row) > 1][1:]  # a long file name wraps
    assert [row[0] for row in cells] == ["drive.background_idle_us", "tcp.ecn", "nic", "nic", "nic"]
    assert f"tcp.ecnrequestdefault{file}:2" in "".join(done.stdout.split())
    done = harpctl("config", "diff", "-o", "json", "--file", str(file))
    assert [row["key"] for row in json.loads(done.stdout)["differences"]] == [
        "tcp.ecn",
        "nic eth1.queues",
        "nic eth1.irq_affinity",
        "nic eth1.irq_cores",
    ]
    empty = file.with_name("empty.toml")
    empty.write_text("")
    assert "every setting has its default" in harpctl("config", "diff", "--file", str(empty)).stdout


@pytest.mark.usefixtures("need_root")
def test_the_running_harpd_is_compared_and_restarted(tmp_path: Path) -> None:
    """A harpd without NICs: its settings, and those of its environment."""
    file = tmp_path / "harp.toml"
    begin = f'[daemon]\nrun_dir = "{tmp_path}/run"\n[metrics]\nport = 0\n'
    file.write_text(begin)
    here = ("--file", str(file))

    def differences() -> dict[str, tuple[object, object]]:
        done = harpctl("config", "diff", "--running", "-o", "json", *here, HARP_FRAMES="2048")
        assert done.returncode == Exit.OK, done.stderr
        rows = json.loads(done.stdout)["differences"]
        return {row["key"]: (row["value"], row["other"]) for row in rows}

    assert harpctl("config", "diff", "--running", *here).returncode == Exit.NOT_RUNNING
    started = harpctl("start", *here, HARP_LEASES_PER_UID="7")
    assert started.returncode == Exit.OK, started.stderr
    try:
        from_environment = {"daemon.leases_per_uid": (7, 64)}
        assert differences() == from_environment
        shown = harpctl("config", "diff", "--running", *here).stdout
        assert "environment" in shown
        file.write_text(begin + "[job]\nframes = 1024\n[daemon.x]\n")
        done = harpctl("restart", *here)
        assert done.returncode == Exit.FAILURE
        assert f"{file}:7:1: daemon.x is an unknown key" in done.stderr
        file.write_text(begin.replace("= 0", "= 9999") + "[job]\nframes = 1024\n")
        assert differences() == {
            **from_environment,
            "job.frames": (8192, 1024),
            "metrics.port": (0, 9999),
        }
        done = harpctl("restart", *here)
        assert done.returncode == Exit.OK, done.stderr
        assert differences() == from_environment
    finally:
        stopped = harpctl("stop", *here)
    assert stopped.returncode == Exit.OK, stopped.stderr


def test_compare_names_added_and_removed_nics() -> None:
    nic = '[[nic]]\nifname = "{}"\n{}\n'
    old = report.document(config.parse(nic.format("a", "queues = 2") + nic.format("b", "")))
    new = report.document(config.parse(nic.format("a", "queues = 3") + nic.format("c", "")))
    rows = {row["key"]: (row["value"], row["other"]) for row in report.against(old, new)}
    assert rows["nic a.queues"] == (2, 3)
    assert rows["nic b.queues"] == (0, None)
    assert rows["nic c.queues"] == (None, 0)
    assert len(rows) == 1 + 2 * (len(keys.tables()["nic"]) - 1)
    assert report.against(old, old) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_program(shell: str) -> None:
    done = harpctl("completion", shell)
    assert done.returncode == Exit.OK
    assert f"_HARPCTL_COMPLETE={shell}_complete" in done.stdout


def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    """A real bash sources the script and completes `harpctl con`."""
    (tmp_path / "script").write_text(harpctl("completion", "bash").stdout)
    (tmp_path / "harpctl").write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    (tmp_path / "harpctl").chmod(0o755)
    commands = (
        f"source {tmp_path}/script\n"
        "COMP_WORDS=(harpctl con); COMP_CWORD=1\n"
        "_harpctl_completion harpctl\n"
        'echo "${COMPREPLY[@]}"\n'
    )
    done = finished(
        ["bash", "-c", commands],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        check=True,
    )
    assert done.stdout == "config\n"
    assert done.stderr == ""
