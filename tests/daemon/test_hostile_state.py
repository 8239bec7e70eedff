# SPDX-License-Identifier: Apache-2.0
"""harpd starts with a damaged or truncated state.json, and logs it."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from daemon_rig import Start
from fake_kernel import FakeKernel

from harp.daemon import peer, takeover
from harp.daemon.settings import Settings
from harp.daemon.state import BadStateError, StateFile, decode
from harp.errors import HarpError
from harp.nicprep import Host, Preparation, restore


def valid_state() -> dict[str, Any]:
    """Return a state: this process leases a queue and a DPDK port; a port block is quarantined."""
    pid = os.getpid()
    return {
        "format": 2,
        "pid": pid,
        "start_ticks": peer.start_ticks(pid),
        "version": "0.1.0",
        "nics": {"eth0": {"ifindex": 2, "pins": "", "addresses": ["00" * 10 + "ffff0a000001"]}},
        "leases": [
            {
                "lease_id": 77,
                "owner": {"pid": pid, "start_ticks": peer.start_ticks(pid), "uid": os.getuid()},
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
                "owner": {"pid": pid, "start_ticks": peer.start_ticks(pid), "uid": os.getuid()},
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


def is_readable(text: str) -> bool:
    try:
        decode(text)
    except BadStateError:
        return False
    return True


def test_a_truncated_state_is_an_error() -> None:
    text = json.dumps(valid_state())
    assert is_readable(text)
    assert not [end for end in range(len(text)) if is_readable(text[:end])]


def test_a_damaged_state_is_set_aside(
    start: Start, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = [b"\xff\xfe\0", b"", b"[" * 100_000, b"\0" * 4096, b"{", b"[]"]
    damaged += [b'{"format": 99}', b'{"format": 2, "leases": 3}']
    for raw in damaged:
        settings.run_dir.mkdir(exist_ok=True)
        (settings.run_dir / "state.json").write_bytes(raw)
        start(FakeKernel()).end(remove=True)
        assert (settings.run_dir / "state.bad").read_bytes() == raw
    assert "internal error" not in caplog.text
    assert caplog.text.count("earlier jobs are unknown") == len(damaged)
    reason = "it has format 99 and this harpd reads only format 2, so its leases end and their jobs"
    assert caplog.text.count(reason) == 1


RINGS = valid_state()["undo"]["entries"][0]


@pytest.mark.parametrize(
    "foreign",
    [
        RINGS | {"kind": "newkind", "since": "0.9"},
        {"kind": "rings", "target": "nosuch0"},
        RINGS | {"ours": {"tx": [1024]}},
        RINGS | {"kind": "reserved-ports"},
        RINGS | {"kind": []},
        RINGS | {"target": 3},
        RINGS | {"before": None},
        "rings",
        None,
    ],
)
def test_an_undo_entry_of_another_harpd_version_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, foreign: object
) -> None:
    """It affects no lease and no other entry. A harpd of its version can restore it later."""
    document = valid_state()
    document["undo"]["entries"].insert(0, foreign)
    file = StateFile(tmp_path)
    file.path.write_text(json.dumps(document))
    state = file.read()
    assert len(state.leases) == 1
    assert [entry.kind for entry in state.undo.entries] == ["rings"]
    assert caplog.text.count("a change by another version of harpd is not restored: ") == 1
    restored = restore(state.undo, Host()).undo  # nosuch0 is gone
    assert not restored.entries
    assert restored
    file.write(replace(state, undo=restored))
    assert json.loads(file.path.read_text())["undo"] == {"entries": [foreign]}


def test_a_damaged_state_that_cannot_be_set_aside(
    start: Start, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    (settings.run_dir / "state.bad" / "x").mkdir(parents=True)
    (settings.run_dir / "state.json").write_text("{")
    start(FakeKernel()).end(remove=True)
    assert "it can't be renamed either (Is a directory); earlier jobs" in caplog.text


@pytest.mark.parametrize("name", ["state.json", "run_dir"])
def test_a_state_that_another_user_can_change_is_refused(
    start: Start, settings: Settings, name: str
) -> None:
    """Neither a start nor `harpctl stop` trusts or changes it."""
    settings.run_dir.mkdir()
    file = settings.run_dir / "state.json"
    text = json.dumps(valid_state())
    file.write_text(text)
    unsafe = file if name == "state.json" else settings.run_dir
    unsafe.chmod(unsafe.stat().st_mode | 0o002)
    subject = "the state" if name == "state.json" else "run_dir"
    unpinned: list[str] = []

    def unpin(path: str) -> bool:
        unpinned.append(path)
        return True

    for action in (
        lambda: start(FakeKernel()),
        lambda: takeover.clean(settings, Preparation(), unpin, force=True),
    ):
        with pytest.raises(HarpError) as failure:
            action()
        assert str(failure.value).startswith(f"{subject} is not trusted: ")
        assert "can be changed by other users" in str(failure.value)
        assert "\n" not in str(failure.value)
    assert file.read_text() == text
    assert not unpinned
