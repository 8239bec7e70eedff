# SPDX-License-Identifier: Apache-2.0
"""Every kind of error in harp.toml is reported with its place, and all errors at once."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import finished

from harp import config
from harp.config import keys
from harp.config.document import FILE_BYTES_MAX
from harp.errors import Exit

NOBODY = 65534

# Contents of the file, and the error.
MISTAKES = [
    ('[jobs]\npath = "xdp"\n', "f:1:1: jobs is an unknown table: did you mean job?"),
    ("\nframes = 8192\n", "f:2:1: frames belongs in the table [job]"),
    (
        "color = 1\n",
        "f:1:1: color is an unknown key: "
        "the tables are job, daemon, lanes, drive, tcp, metrics, nic, dpdk",
    ),
    ("tcp = 1\n", "f:1:1: tcp must be a table: [tcp], then congestion = ... below it"),
    ("[tcp]\n  enc = 1\n", "f:2:3: tcp.enc is an unknown key: did you mean ecn?"),
    ('[job]\necn = "off"\n', "f:2:1: job.ecn is an unknown key: did you mean tcp.ecn?"),
    (
        '[job]\nframes = "8192"\n',
        'f:2:1: job.frames = "8192": must be a whole number of frames from 1024 to 1048576: '
        "write 8192 without quotes",
    ),
    ('[daemon]\nprepare = "true"\n', "write true without quotes"),
    ('[job]\npath = "xpd"\n', "must be one of auto, xdp, kernel, dpdk; did you mean xdp?"),
    # harpd passes [job] on to jobs, so it must not contain a library's path.
    ('[job]\nlibdir = "/tmp"\n', "f:2:1: job.libdir is an unknown key: [job] has path"),
    ("job.path = 1\n", "f:1:1: job.path = 1: must be one of auto, xdp, kernel, dpdk"),
    (
        '[nic]\nifname = "eth0"\n',
        "f:1:1: nic must be an array of tables: write [[nic]], once for each",
    ),
    ("[[nic]]\n[[nic]]\n", 'f:2:1: nic needs ifname = "..."'),
    (
        '[[nic]]\nifname = "a"\n[[nic]]\nifname = "a"\n',
        'f:4:1: nic.ifname = "a": line 2 has it already',
    ),
    ("[[nic]]\n" * 33, "f:1:1: nic appears 33 times; at most 32"),
    (
        '[[nic]]\nifname = "a"\nirq_cores = "1"\n',
        'f:3: nic.irq_cores has no effect without irq_affinity = "cores"',
    ),
    (
        '[[nic]]\nifname = "a"\nirq_affinity = "cores"\n',
        'f:3: nic.irq_affinity = "cores" needs irq_cores',
    ),
    (
        '[[nic]]\nifname = "a"\nqueues = 2\nlease_queues = "1-2"\n',
        "f:4: nic.lease_queues names queue 2, and queues = 2 numbers them 0 to 1",
    ),
    (
        '[[nic]]\nifname = "a"\nallow_sources = ["10.0.0.0/8", "10.0.0.1/8"]\n',
        'f:3:1: nic.allow_sources = ["10.0.0.0/8", "10.0.0.1/8"]: must be prefixes like 10.0.0.0/8 '
        'or fd00::/8, and "10.0.0.1/8" is not: it has bits set after the first 8; write 10.0.0.0/8',
    ),
    (
        '[[nic]]\nifname = "a"\nallow_sources = ["::/0"' + ', "::/0"' * 5000 + "]\n",
        'f:3:1: nic.allow_sources = ["::/0"'
        + ', "::/0"' * 8
        + ', "::/...: must be a list of at most '
        "64 words without commas or spaces",
    ),
    (
        '[[dpdk]]\ndevice = "net_tap0"\n[[dpdk]]\ndevice = "net_tap0,iface=x"\n',
        'f:4:1: dpdk.device = "net_tap0,iface=x": line 2 has it already',
    ),
    (
        '[[nic]]\nifname = "eth1"\n[[dpdk]]\ndevice = "net_tap0"\nname = "eth1"\n',
        "f:5: dpdk.name makes a second eth1: f:2 has one; set name",
    ),
    (
        '[[dpdk]]\ndevice = "net_tap0"\naddresses = ["fd00::1/64"]\n'
        '[[dpdk]]\ndevice = "net_tap1"\naddresses = ["10.0.0.1/8", "fd00:0::1/64"]\n',
        "f:6: dpdk.addresses names fd00::1, which is in f:3 already",
    ),
    (
        '[[nic]]\nifname = "a"\n' + "".join(f'[[dpdk]]\ndevice = "d{i}"\n' for i in range(32)),
        "f:3:1: dpdk makes 1 [[nic]] and 32 [[dpdk]]; at most 32 together",
    ),
    (
        '[[dpdk]]\ndevice = "net_tap0"\naddresses = ["fd00::1/64"]\nmtu = 1000\n',
        "f:4: dpdk mtu=1000: IPv6 needs at least 1280",
    ),
    (
        '[[dpdk]]\ndevice = "net_tap0"\ngateways = ["10.0.0.1"]\n',
        "f:2: dpdk the gateway 10.0.0.1: the port has no address of its family; set ip=",
    ),
    (
        '[[dpdk]]\ndevice = "net_tap0"\naddresses = ["10.0.0.1/24", "10.0.0.300/24"]\n',
        'f:3:1: dpdk.addresses = ["10.0.0.1/24", "10.0.0.300/24"]: '
        'must be valid for a DPDK port, and "10.0.0.300/24" is not: '
        "needs ADDRESS/LEN, such as 10.0.0.1/24 or fd00::1/64",
    ),
    (
        '[tcp]\necn = "off"\ncongestion = "dctcp"\n',
        "f:2: tcp.ecn congestion = dctcp needs ECN: ecn must not be off",
    ),
    (
        "[job]\nport_min = 65000\nport_max = 64000\n",
        "f:3: job.port_max port_min = 65000 is above port_max = 64000",
    ),
    ("[job\n", "f:1:5: Expected ']' at the end of a table declaration (TOML syntax)"),
    ('[job]\npath = "xdp"\npath = "xdp"\n', "f:3:13: Cannot overwrite a value (TOML syntax)"),
]


@pytest.mark.parametrize(("text", "error"), MISTAKES, ids=[error for _, error in MISTAKES])
def test_a_mistake_is_named(text: str, error: str) -> None:
    with pytest.raises(config.ConfigError) as caught:
        config.parse(text, "f")
    assert any(error in str(problem) for problem in caught.value.problems), str(caught.value)
    assert caught.value.code == Exit.FAILURE


def test_all_errors_are_listed_in_order() -> None:
    good_lines = ("[job]\n", "[daemon]\n")
    text = (
        "stray = 1\n"
        "[job]\n"
        "frames = 1\n"
        'path = "pigeon"\n'
        "whatever = true\n"
        "[daemon]\n"
        'run_dir = "relative"\n'
        "[demon]\n"
        "[[nic]]\n"
        "queues = -1\n"
    )
    with pytest.raises(config.ConfigError) as caught:
        config.parse(text, "f", environ={"HARP_ECN": "maybe", "HARP_BACKGROUND_IDLE_US": "1.5"})
    places = [problem.place for problem in caught.value.problems]
    bad_lines = [n for n, line in enumerate(text.splitlines(True), 1) if line not in good_lines]
    assert places == [f"f:{line}:1" for line in bad_lines] + ["environment"] * 2
    assert str(caught.value).count("\n") == len(places) - 1


def test_environment_errors_are_listed_with_syntax_errors(tmp_path: Path) -> None:
    file = tmp_path / "harp.toml"
    file.write_text("[job\n")
    with pytest.raises(config.ConfigError) as caught:
        config.load(file, {"HARP_FRAMES": "1"}, settings={"ecn": "x"})
    assert [problem.key for problem in caught.value.problems] == ["", "tcp.ecn", "HARP_FRAMES"]


def test_an_unknown_variable_is_a_warning_with_the_nearest_name() -> None:
    parsed = config.parse("", environ={"HARP_FRAME": "1", "HARPSICHORD": "1", "HARP_\x1b": "1"})
    assert parsed.warnings == (
        "environment: HARP_FRAME is unknown and ignored: did you mean HARP_FRAMES?",
        "environment: HARP_\\u001b is unknown and ignored",
    )


def test_harpd_ignores_variables_of_jobs_and_tools(empty: Path) -> None:
    """harpd's environment must not override the file's settings for jobs."""
    environ = {"HARP_FRAMES": "nonsense", "HARP_LOG_LEVEL": "debug", "HARP_SEEDS": "nonsense"}
    parsed = config.load(empty, environ, readers=config.Reader.DAEMON)
    assert parsed["HARP_LOG_LEVEL"] == "debug"
    assert parsed["HARP_FRAMES"] == 8192


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A copy of conf/harp.toml, since the tree may belong to another user."""
    text = (Path(__file__).resolve().parents[2] / "conf" / "harp.toml").read_text()
    file = tmp_path / "empty.toml"
    file.write_text(text)
    return file


def test_the_command_line_overrides_all_and_is_checked(empty: Path) -> None:
    parsed = config.load(
        empty, {"HARP_ECN": "off"}, settings={"tcp.ecn": "request", "HARP_FRAMES": "1024"}
    )
    assert (parsed["HARP_ECN"], parsed["HARP_FRAMES"]) == ("request", 1024)
    assert parsed.values["HARP_ECN"].source.kind == "command line"
    unknown = {"tcp.ecm": "x", "nic.queues": "1", "frames": "1", "zzz": "", "HARP_FRAMEZ": "1"}
    with pytest.raises(config.ConfigError) as caught:
        config.load(empty, {}, settings=unknown)
    assert [str(problem) for problem in caught.value.problems] == [
        "command line: tcp.ecm is an unknown key: did you mean tcp.ecn?",
        "command line: nic.queues is an unknown key: `harpctl config show` lists the keys",
        'command line: job.frames = "1": must be a whole number of frames from 1024 to 1048576',
        "command line: zzz is an unknown key: `harpctl config show` lists the keys",
        "command line: HARP_FRAMEZ is an unknown key: did you mean HARP_FRAMES?",
    ]


# --------------------------------------------------------------------------------------------------
# Unusable files.
#
def load_error(path: Path) -> config.ConfigError:
    """Return the only error of load()."""
    with pytest.raises(config.ConfigError) as caught:
        config.load(path, {})
    (problem,) = caught.value.problems
    assert problem.place.startswith(str(path))
    assert len(str(problem)) < len(str(path)) + 320
    assert str(problem).isprintable()
    return caught.value


HOSTILE: list[tuple[str, bytes, str]] = [
    ("a null byte", b"[job]\x00\n", ":1:6: "),
    ("10 MB", b"#" * 10_000_000, "is larger than 256 KiB"),
    ("arrays in arrays", b"a = " + b"[" * 100_000, "is nested too deeply"),
    ("tables in tables", b"a = " + b"{b = " * 40_000, "is nested too deeply"),
    (
        "UTF-16",
        '[job]\npath = "xdp"\n'.encode("utf-16"),
        ":1:1: byte 0xff is not UTF-8: save it as UTF-8",
    ),
    ("a byte order mark", b"\xef\xbb\xbf[job]\n", "begins with a byte order mark"),
    ("Latin-1", b'[job]\nifname = "\xe9"\n', ":2:11: byte 0xe9 is not UTF-8"),
    ("an overlong encoding", b"[job]\n# \xc0\xaf\n", ":2:3: byte 0xc0 is not UTF-8"),
    ("an ELF file", Path(sys.executable).resolve().read_bytes()[:100_000], ":1:"),
    ("a lone carriage return", b"[job]\rx = 1\n", ":1:6: "),
    ("a number without end", b"[job]\nframes = " + b"9" * 200_000, ""),
    ("a long value", b'[job]\npath = "' + b"x" * 200_000 + b'"\n', ":2:1: job.path ="),
    ("terminal escapes", b'[job]\npath = "\\u001b[2J\\u009b"\n', r"\u001b[2J\x9b"),
    ("dots", b"#\na" + b".a" * 3000 + b" = 1\n", ":2:1: has more than 100 dots in a line"),
    ("a few dots", b"# " + b"." * 9000 + b"\na" + b".a" * 99 + b" = 1\n", ":2:1: a is an unknown"),
]


@pytest.mark.parametrize(
    ("content", "error"), [h[1:] for h in HOSTILE], ids=[h[0] for h in HOSTILE]
)
def test_hostile_contents_are_one_error(content: bytes, error: str, tmp_path: Path) -> None:
    file = tmp_path / "harp.toml"
    file.write_bytes(content)
    assert error in str(load_error(file))


@pytest.mark.parametrize("piece", [".a", "[[nic.b]]\n", "a.b={}\n", "[", "#\n"])
def test_large_files_are_parsed_or_refused_in_time(piece: str, tmp_path: Path) -> None:
    """A parser with quadratic time for one of these would take hours."""
    file = tmp_path / "harp.toml"
    for before in ("", "a", "a = ", "[[nic]]\n"):
        text = before + piece * ((FILE_BYTES_MAX - 10) // len(piece))
        file.write_text(text)
        try:
            config.load(file, {})
        except config.ConfigError:
            assert not text.isspace()


def test_a_path_that_is_no_regular_file_is_an_error(tmp_path: Path) -> None:
    assert "Is a directory" in str(load_error(tmp_path))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "is not a regular file" in str(load_error(pipe)), "load() does not wait for a writer"
    assert "is not a regular file" in str(load_error(Path("/dev/zero")))
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "Too many levels of symbolic links" in str(load_error(loop))
    assert "File name too long" in str(load_error(tmp_path / ("x" * 300)))


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    error = load_error(tmp_path / "harp.toml")
    assert error.code == Exit.MISSING
    assert "harpctl config init" in str(error)
    with pytest.raises(config.ConfigError):
        config.load(environ={"HARP_CONFIG": str(tmp_path / "harp.toml")})
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nothing")
    assert load_error(dangling).code == Exit.MISSING
    file = tmp_path / "file"
    file.write_text("")
    assert "Not a directory" in str(load_error(file / "harp.toml"))


def test_only_the_default_file_may_be_absent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("harp.config.loading.DEFAULT_FILE", str(tmp_path / "harp.toml"))
    parsed = config.load(environ={})
    assert parsed.file == ""
    assert all(value.source.kind == "default" for value in parsed.values.values())
    (tmp_path / "harp.toml").write_text("[job]\nframes = 1024\n")
    assert config.load(environ={})["HARP_FRAMES"] == 1024


@pytest.mark.usefixtures("need_root")
def test_an_unreadable_file_names_the_user(tmp_path: Path) -> None:
    file = tmp_path / "harp.toml"
    file.write_text("")
    file.chmod(0o600)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and folder.name.startswith("pytest"):
            folder.chmod(0o755)
    code = (
        "import os, sys\n"
        "from harp import config\n"
        f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "try:\n"
        "    config.load(sys.argv[1], {})\n"
        "except config.ConfigError as error:\n"
        "    print(int(error.code), error)\n"
    )
    done = finished([sys.executable, "-c", code, str(file)], check=True)
    remedy = "this user may not read it; chmod a+r it, or run as root"
    assert done.stdout == f"{Exit.PRIVILEGE.value} {file}: {remedy}\n"


# Each function lets another user change harp.toml and returns the error. The file has its own
# folder.
def allow_group_write(file: Path) -> str:
    file.chmod(0o664)
    return f"{file} can be changed by other users (mode 664): chmod go-w {file}"


def allow_world_write(file: Path) -> str:
    file.chmod(0o646)
    return f"{file} can be changed by other users (mode 646): chmod go-w {file}"


def change_owner(file: Path) -> str:
    os.chown(file, NOBODY, NOBODY)
    return f"{file} belongs to user {NOBODY}, who can change it: chown root {file}"


def change_folder_owner(file: Path) -> str:
    os.chown(file.parent, NOBODY, NOBODY)
    return f"{file.parent} belongs to user {NOBODY}, who can change it: chown root {file.parent}"


def allow_world_write_to_folder(file: Path) -> str:
    file.parent.chmod(0o777)
    return f"{file.parent} can be changed by other users (mode 777): chmod go-w {file.parent}"


def link_to_file_of_another_user(file: Path) -> str:
    target = file.rename(file.parent.parent / "theirs")
    os.chown(target, NOBODY, NOBODY)
    file.symlink_to(target)
    return f"{target} belongs to user {NOBODY}"


def use_link_of_another_user(file: Path) -> str:
    """In a sticky folder such as /tmp: the owner can redirect the link away from root's file."""
    target = file.rename(file.parent.parent / "ours")
    file.symlink_to(target)
    os.chown(file, NOBODY, NOBODY, follow_symlinks=False)
    file.parent.chmod(0o1777)
    return f"{file} belongs to user {NOBODY}"


def link_through_folder_of_another_user(file: Path) -> str:
    theirs = file.parent.parent / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    (theirs / "link").symlink_to(file.rename(file.parent.parent / "ours"))
    os.chown(theirs / "link", 0, 0, follow_symlinks=False)
    file.symlink_to("../theirs/link")
    return f"{theirs} belongs to user {NOBODY}"


UNTRUSTED = (
    allow_group_write,
    allow_world_write,
    change_owner,
    change_folder_owner,
    allow_world_write_to_folder,
    link_to_file_of_another_user,
    use_link_of_another_user,
    link_through_folder_of_another_user,
)


@pytest.mark.usefixtures("need_root")
@pytest.mark.parametrize("spoil", UNTRUSTED, ids=lambda spoil: spoil.__name__)
def test_a_file_that_another_user_can_change_is_refused(
    tmp_path: Path, spoil: Callable[[Path], str]
) -> None:
    file = tmp_path / "etc" / "harp.toml"
    file.parent.mkdir()
    file.write_text("")
    assert config.load(file, {}).file == str(file)
    reason = spoil(file)
    error = str(load_error(file))
    assert error.startswith(f"{file}: is not trusted: {reason}")
    assert "\n" not in error


def test_links_and_sticky_folders_of_trusted_users_are_accepted(tmp_path: Path) -> None:
    file = tmp_path / "harp.toml"
    file.write_text("")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc").chmod(0o1777)
    link = tmp_path / "etc" / "harp.toml"
    link.symlink_to("../etc/./../harp.toml")
    assert config.load(link, {}).file == str(link)


# --------------------------------------------------------------------------------------------------
# The strongest encryption setting of environment, command line and harp.toml wins.
#
REQUIRED = '[lanes]\nencrypt = "aes-256-gcm"\n'


@pytest.mark.parametrize(
    ("text", "environ", "set_to", "effective"),
    [
        (REQUIRED, "", "", "aes-256-gcm"),
        (REQUIRED, "auto", "", "aes-256-gcm"),
        (REQUIRED, "", "auto", "aes-256-gcm"),
        ("", "aes-256-gcm", "", "aes-256-gcm"),
        ('[lanes]\nencrypt = "off"\n', "aes-256-gcm", "", "aes-256-gcm"),
        ('[lanes]\nencrypt = "off"\n', "", "", "off"),
        ("", "off", "", "off"),
        ("", "", "", "auto"),
    ],
)
def test_the_strongest_encryption_setting_wins(
    tmp_path: Path, text: str, environ: str, set_to: str, effective: str
) -> None:
    file = tmp_path / "harp.toml"
    file.write_text(text)
    command_line = {"lanes.encrypt": set_to} if set_to else {}
    parsed = config.load(file, {"HARP_ENCRYPT": environ}, settings=command_line)
    assert parsed["HARP_ENCRYPT"] == effective


@pytest.mark.parametrize("where", ["environment", "command line"])
def test_required_encryption_is_not_revoked(tmp_path: Path, where: str) -> None:
    file = tmp_path / "harp.toml"
    file.write_text(REQUIRED)
    environ = {"HARP_ENCRYPT": "off"} if where == "environment" else {}
    command_line = {} if where == "environment" else {"lanes.encrypt": "off"}
    with pytest.raises(config.ConfigError) as caught:
        config.load(file, environ, settings=command_line)
    (problem,) = caught.value.problems
    assert str(problem) == (
        f'{where}: lanes.encrypt = "off", and {file}:2 requires encryption: unset it, or change '
        "that"
    )


fragments = st.sampled_from(
    [
        *(f"[{name}]" for name in keys.tables()),
        *(f"[[{name}]]" for name in keys.ARRAYS),
        *(f"{key.key} = " for key in keys.all_keys() if key.table),
        *("\n", '"a"', "1", "true", "[1,", "]", "{a = 1}", "'''x\n'''", "# c\n", ".", ","),
        *("1979-05-27", "inf"),
    ]
)


@given(st.lists(fragments, max_size=20))
@settings(deadline=None, max_examples=500)
def test_fragments_of_toml_cause_only_config_errors(parts: list[str]) -> None:
    text = "".join(parts)
    try:
        parsed = config.parse(text, "f")
    except config.ConfigError as error:
        lines = text.count("\n") + 1
        for problem in error.problems:
            line = int(problem.place.split(":")[1])
            assert 1 <= line <= lines + 1
    else:
        assert len(parsed.values) == len(keys.global_keys())
