# SPDX-License-Identifier: Apache-2.0
"""The plugin reads the profiles that harpctl writes, and both refuse the same files."""

import os
import tomllib
from pathlib import Path

import pytest
from harpctl import harpctl
from programs import finished

from harp.config import profile
from harp.config.profile import Entry

HOST = "node7"
TOP = f'version = 1\nhost = "{HOST}"\n'
NIC = '[[nic]]\nifname = "eth1"\nmode = "generic-copy"\nharp_up_to = "4KiB"\n'
ENTRIES = (
    Entry("eth1", "generic-copy", "4KiB", "10.1.0.0/16"),
    Entry("eth1", "generic-copy", "none"),
    Entry("eth2", "zero-copy", "all", "fd00:7::/32"),
)
TUNER = '[tuner]\nlatency_ns = 21300\nrates = "16384:300 1048576:1200"\nchannels = "1:900 2:1700"\n'
BAD = (
    TOP + TUNER + TUNER,
    TOP + TUNER.replace("latency_ns = 21300\n", ""),
    TOP + TUNER.replace("21300", "0"),
    TOP + TUNER.replace("21300", '"21300"'),
    TOP + TUNER.replace("21300", "1234567890123"),
    TOP + TUNER.replace("16384:300 ", "1048576:300 "),
    TOP + TUNER.replace("16384:300", "16384"),
    TOP + TUNER.replace("16384:300", "16384:0"),
    TOP + TUNER.replace("16384:300 ", "16384:300,"),
    TOP + TUNER.replace("16384:300 ", "16384:300  "),
    TOP + TUNER.replace("1:900 2:1700", " "),
    TOP + TUNER.replace("1:900 2:1700", ""),
    TOP + TUNER.replace("1:900 2:1700", " ".join(f"{n}:1" for n in range(1, 18))),
    TOP + TUNER + "speed = 1\n",
    "",
    "version = 2\n" + TOP.split("\n")[1],
    'version = 1\nhost = "node8"\n',
    "version = 1\n",
    TOP + "speed = 1\n",
    TOP + "[nic]\n",
    TOP + "[[nic]]\n",
    TOP + "[[other]]\n",
    TOP + NIC + "speed = 1\n",
    TOP + NIC + 'peers = "10.1.0.0"\n',
    TOP + NIC + 'peers = "10.1.0.0/8"\n',
    TOP + NIC + 'peers = ""\n',
    TOP + NIC.replace("4KiB", "5KiB"),
    TOP + NIC.replace("generic-copy", "dpdk"),
    TOP + NIC.replace('"eth1"', '"sixteen_letters_"'),
    TOP + NIC.replace('"eth1"', "1"),
    TOP + NIC * 65,
    TOP + NIC + NIC.split("\n")[1] + "\n",
    "nonsense\n",
    TOP + 'x = "unfinished\n',
)


def read(build_dir: Path, file: Path) -> list[str]:
    """Return the plugin's result, followed by the entries or the reason."""
    command = [build_dir / "tests" / "unit" / "plugin_probe", "profile", HOST, file]
    done = finished(command, check=True)
    return done.stdout.split()


def test_the_plugin_reads_profiles_of_harpctl(build_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "profile.toml"
    file.write_text(profile.text(ENTRIES, HOST))
    assert profile.parse(file.read_text(), HOST) == ENTRIES
    assert read(build_dir, file) == [
        *("1", "eth1,1,1,10.1.0.0/112", "eth1,1,0,::/0", "eth2,3,3,fd00:7::/32"),
    ]


def test_the_plugin_reads_times_for_the_tuner(build_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "profile.toml"
    for text in (TOP + TUNER + NIC, TOP + NIC + TUNER):
        file.write_text(text)
        assert len(profile.parse(text, HOST)) == 1
        assert read(build_dir, file) == ["1", "tuner,21300,2,2,1048576,900", "eth1,1,1,::/0"]


@pytest.mark.parametrize("text", BAD)
def test_both_refuse_bad_profiles(build_dir: Path, tmp_path: Path, text: str) -> None:
    with pytest.raises(profile.ProfileError):
        profile.parse(text, HOST)
    file = tmp_path / "profile.toml"
    file.write_text(text)
    assert read(build_dir, file)[0] == "-22"


def test_the_plugin_accepts_toml_comments_and_crlf(build_dir: Path, tmp_path: Path) -> None:
    text = "# measured\r\n" + TOP + "\n" + NIC.replace("\n", "  # a comment\n")
    file = tmp_path / "profile.toml"
    file.write_bytes(text.encode())
    assert read(build_dir, file)[0] == "1"
    assert tomllib.loads(file.read_bytes().decode())["nic"][0]["harp_up_to"] == "4KiB"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (profile.text([Entry("lo", "generic-copy", "none")]), ", then the default table"),
        (profile.text([Entry("nosuch0", "generic-copy", "none")]), "has no interface nosuch0"),
        ('version = 1\nhost = "elsewhere"\n', "it is of host elsewhere, and this is "),
        (None, "no such file"),
    ],
)
def test_config_show_prints_the_source_of_the_path_policy(
    tmp_path: Path, text: str | None, message: str
) -> None:
    file = tmp_path / "profile.toml"
    if text is not None:
        file.write_text(text)
    done = harpctl("config", "show", "HARP_PROFILE", HARP_PROFILE=str(file))
    assert done.returncode == 0, done.stderr
    assert message in done.stdout


def test_a_profile_that_is_not_a_file_is_not_read(tmp_path: Path) -> None:
    """A FIFO would block, and /dev/zero has no end."""
    fifo = tmp_path / "profile.toml"
    os.mkfifo(fifo)
    for file in (fifo, Path("/dev/zero")):
        done = harpctl("config", "show", "HARP_PROFILE", HARP_PROFILE=str(file))
        assert "is not a regular file" in done.stdout
        done = harpctl("tune", "--explain", "allreduce", "1M", "8", "--profile", str(file))
        assert (done.returncode, done.stderr) == (1, f"harpctl: {file}: is not a regular file\n")
