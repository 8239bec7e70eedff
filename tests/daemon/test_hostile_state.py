# SPDX-License-Identifier: Apache-2.0
"""harpd starts with a damaged or truncated state.json, and logs it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from daemon_rig import NOBODY, Running
from fake_kernel import FakeKernel

from harp.daemon import peer, takeover
from harp.daemon.settings import Settings
from harp.daemon.state import BadStateError, StateFile, decode
from harp.errors import HarpError
from harp.nicprep import Preparation


def a_state() -> dict[str, Any]:
    """A lease of a queue and one of a DPDK port by this process, and one block that rests."""
    me = os.getpid()
    return {
        "format": 2,
        "pid": me,
        "start_ticks": peer.start_ticks(me),
        "version": "0.1.0",
        "nics": {"eth0": {"ifindex": 2, "pins": "", "addresses": ["00" * 10 + "ffff0a000001"]}},
        "leases": [
            {
                "lease_id": 77,
                "owner": {"pid": me, "start_ticks": peer.start_ticks(me), "uid": os.getuid()},
                "ifname": "eth0",
                "ifindex": 2,
                "queue": 1,
                "ports": {"first": 61000, "last": 61255},
                "label": "job",
                "since_s": 1.5,
                "frame_count": 64,
                "frame_size": 2048,
                "page_bytes": 4096,
                "frames": [1, 4711],
                "active": True,
                "marks": [],
            }
        ],
        "port_leases": [
            {
                "lease_id": 78,
                "owner": {"pid": me, "start_ticks": peer.start_ticks(me), "uid": os.getuid()},
                "ifname": "rail0",
                "label": "job",
                "since_s": 1.5,
                "device": "net_memif0",
                "queues": 2,
            }
        ],
        "rests": {"eth0": [[61256, 61511, 1e10]]},
        "undo": {
            "entries": [
                {
                    "kind": "rings",
                    "target": "nosuch0",
                    "before": {"rx": 512},
                    "ours": {"rx": [1024]},
                    "ifindex": 5,
                }
            ]
        },
    }


def readable(text: str) -> bool:
    try:
        decode(text)
    except BadStateError:
        return False
    return True


def test_a_truncated_state_is_one_error() -> None:
    text = json.dumps(a_state())
    assert readable(text)
    assert not [end for end in range(len(text)) if readable(text[:end])]


def test_a_damaged_state_is_set_aside(
    start: Callable[..., Running], settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = [b"\xff\xfe\0", b"", b"[" * 100_000, b"\0" * 4096, b"{", b"[]"]
    damaged += [b'{"format": 99}', b'{"format": 2, "leases": 3}']
    for raw in damaged:
        settings.run_dir.mkdir(exist_ok=True)
        (settings.run_dir / "state.json").write_bytes(raw)
        start(FakeKernel()).end(remove=True)
        assert (settings.run_dir / "state.bad").read_bytes() == raw
    assert "internal error" not in caplog.text
    assert caplog.text.count("jobs of before are not known") == len(damaged)
    reason = "it has format 99 and this harpd reads only format 2, so its leases end and their jobs"
    assert caplog.text.count(reason) == 1


def test_an_undo_entry_of_a_newer_harpd_does_not_end_leases(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    document = a_state()
    entries = document["undo"]["entries"]
    entries.insert(0, entries[0] | {"kind": "newkind", "since": "0.9"})
    file = StateFile(tmp_path)
    file.path.write_text(json.dumps(document))
    state = file.read()
    assert len(state.leases) == 1
    assert [entry.kind for entry in state.undo.entries] == ["rings"]
    assert "nosuch0: newkind is not known; harpd does not restore it" in caplog.text


def an_empty_directory(path: Path) -> None:
    path.mkdir()


def a_loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("make", [os.mkfifo, an_empty_directory, a_loop])
def test_a_state_that_is_no_regular_file_blocks_nothing(
    start: Callable[..., Running],
    settings: Settings,
    caplog: pytest.LogCaptureFixture,
    make: Callable[[Path], None],
) -> None:
    """harpd puts it aside."""
    settings.run_dir.mkdir(exist_ok=True)
    make(settings.run_dir / "state.json")
    # In another process: a thread that waits for a FIFO's other end can't be stopped.
    code = f"from harp.files import *; read(Path({str(settings.run_dir / 'state.json')!r}), 9)"
    subprocess.run([sys.executable, "-c", code], check=False, timeout=30, capture_output=True)
    harpd = start(FakeKernel())
    with harpd.client() as client:
        assert client.query("status")["state"] == "good"
    harpd.end(remove=False)
    decode((settings.run_dir / "state.json").read_text())
    assert "jobs of before are not known" in caplog.text


def test_a_state_that_can_not_be_set_aside(
    start: Callable[..., Running], settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    (settings.run_dir / "state.bad" / "x").mkdir(parents=True)
    (settings.run_dir / "state.json").write_text("{")
    start(FakeKernel()).end(remove=True)
    assert "it can't be renamed either (Is a directory); jobs of before" in caplog.text


def everybody_may_write(path: Path) -> str:
    path.chmod(path.stat().st_mode | 0o002)
    return "can be changed by other users"


def a_link_of_another(path: Path) -> str:
    elsewhere = path.parent / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    return f"belongs to user {NOBODY}, who can change it"


UNTRUSTED = (everybody_may_write, a_link_of_another)


@pytest.mark.usefixtures("need_root")
@pytest.mark.parametrize("name", ["state.json", "run_dir"])
@pytest.mark.parametrize("spoil", UNTRUSTED, ids=lambda spoil: spoil.__name__)
def test_a_state_that_another_user_can_change_is_refused(
    start: Callable[..., Running], settings: Settings, name: str, spoil: Callable[[Path], str]
) -> None:
    """Neither a start nor `harpctl stop` believes it, and it is left for a person to look at."""
    settings.run_dir.mkdir()
    file = settings.run_dir / "state.json"
    text = json.dumps(a_state())
    file.write_text(text)
    reason = spoil(file if name == "state.json" else settings.run_dir)
    subject = "the state" if name == "state.json" else "run_dir"
    unpinned: list[str] = []

    def unpin(path: str) -> bool:
        unpinned.append(path)
        return True

    for use in (
        lambda: start(FakeKernel()),
        lambda: takeover.clean(settings, Preparation(), unpin, force=True),
    ):
        with pytest.raises(HarpError) as caught:
            use()
        assert str(caught.value).startswith(f"{subject} is not trusted: ")
        assert reason in str(caught.value)
        assert "\n" not in str(caught.value)
    assert file.read_text() == text
    assert not unpinned


def test_a_state_of_this_user_is_read_through_a_link(
    start: Callable[..., Running], settings: Settings
) -> None:
    elsewhere = settings.run_dir.parent / "elsewhere"
    elsewhere.mkdir()
    settings.run_dir.symlink_to(elsewhere)
    start(FakeKernel()).end(remove=False)
    assert readable((elsewhere / "state.json").read_text())
