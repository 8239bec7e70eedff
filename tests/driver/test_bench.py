# SPDX-License-Identifier: Apache-2.0
"""harp-bench over the reference plugin, which can inject faults, and over HARP's plugin."""

import contextlib
import dataclasses
import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from driver_rig import HANGS_S, Running, bench, finish

WRONG, HANG, PLUGIN = 1, 3, 4


@dataclasses.dataclass
class Rank:
    """How one rank ended."""

    code: int
    out: str
    err: str


class Arena:
    """A namespace with loopback only, where ranks meet."""

    def __init__(self, name: str, bench: Path, plugins: dict[str, Path]) -> None:
        self.name, self.bench, self.plugins = name, bench, plugins
        self._ports = itertools.count(20000)

    def port(self) -> int:
        """A TCP port below the kernel's ephemeral ports that nothing in this namespace has used."""
        return next(self._ports)

    def start(self, rank: int, ranks: int, port: int, *args: str, **env: str) -> Running:
        """One rank in the background; args[0] is the mode."""
        mode, *rest = args
        if "--plugin" not in rest:
            rest += ["--plugin", str(self.plugins["sock"])]
        words = bench(mode, rank, ranks, f"127.0.0.1:{port}", "--ifname", "lo", *rest)
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NCCL_DEBUG": "WARN", **env},
        )

    def run(self, ranks: int, *args: str, **env: str) -> list[Rank]:
        """All ranks alike, to their end."""
        port = self.port()
        with contextlib.ExitStack() as stack:
            running = [self.start(rank, ranks, port, *args, **env) for rank in range(ranks)]
            for process in running:
                stack.callback(finish, process)
            ended = []
            for process in running:
                out, err = process.communicate(timeout=2 * HANGS_S)
                ended.append(Rank(process.returncode, out, err))
            return ended

    def document(self, ranks: int, *args: str, code: int = 0, **env: str) -> dict[str, Any]:
        """Rank 0's JSON; every rank must have ended with code."""
        ended = self.run(ranks, *args, **env)
        assert [rank.code for rank in ended] == [code] * ranks, ended
        document: dict[str, Any] = json.loads(ended[0].out)
        assert document["exit"] == code
        assert document["ok"] == (code == 0)
        return document


@pytest.fixture(scope="module")
def arena(build_dir: Path, need_root: None) -> Iterator[Arena]:
    """The place, and the binaries of the build tree."""
    name = f"hx-bench-{os.getpid()}"
    driver = build_dir / "tools/driver"
    plugins = {
        "sock": driver / "libnccl-net-sock.so",
        "harp": build_dir / "plugin/libnccl-net-harp.so",
    }
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield Arena(name, driver / "harp-bench", plugins)
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


@pytest.fixture(params=["sock", "harp"])
def plugin(request: pytest.FixtureRequest, arena: Arena) -> list[str]:
    """The reference plugin, and HARP over kernel lanes."""
    path = arena.plugins[request.param]
    if not path.exists():
        pytest.fail(f"{path} was not built")
    return ["--plugin", str(path)]


@pytest.fixture(autouse=True)
def kernel_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing but loopback here."""
    monkeypatch.setenv("HARP_PATH", "kernel")


# --------------------------------------------------------------------------------------------------
# What it measures.
#


@pytest.mark.parametrize("more", [[], ["--channels", "3"]], ids=" ".join)
def test_bw_measures_bandwidth(arena: Arena, plugin: list[str], more: list[str]) -> None:
    """All messages of all channels are in the receiver's window."""
    channels = 3 if "--channels" in more else 1
    args = ["--sizes", "65536:100:10", *more, *plugin]
    document = arena.document(2, "bw", *args)
    (row,) = document["results"]
    assert row["messages"] == 100 * channels
    assert row["window_us"] > 0
    assert row["wrong"] == 0
    # Timed, warm and checked messages, each once.
    assert document["sent_messages"] == (110 + 64) * channels


def test_sizes_are_measured_in_the_order_given(arena: Arena) -> None:
    """Each with its own number of messages; one of 0 bytes too."""
    document = arena.document(2, "lat", "--sizes", "4K:30:2,8,64K:20")
    found = [(row["size_bytes"], row["messages"]) for row in document["results"]]
    assert found == [(4096, 30), (8, 100), (65536, 20)]
    document = arena.document(2, "bw", "--sizes", "0:20")
    assert [row["size_bytes"] for row in document["results"]] == [0]


@pytest.mark.parametrize(("ranks", "channels"), [(2, 3), (3, 2)])
def test_allreduce_sums_are_right(
    arena: Arena, plugin: list[str], ranks: int, channels: int
) -> None:
    """Exact sums: chunks that are empty, cut short, of one slice and of several rounds."""
    sizes = "4:2:1,36:2:1,2916:2:1,26244:2:1,5000004:2:1"
    args = ["allreduce", "--sizes", sizes, "--channels", str(channels), *plugin]
    results = arena.document(ranks, *args)["results"]
    assert [row["size_bytes"] for row in results] == [4, 36, 2916, 26244, 5000004]
    assert not any(row["wrong"] for row in results)
    assert all(row["time_us"] > 0 and row["iteration_us"] > 0 for row in results)


def test_alltoall_messages_are_right(arena: Arena, plugin: list[str]) -> None:
    args = ["--sizes", "3000,30000,300000", "--channels", "2", *plugin]
    assert len(arena.document(2, "alltoall", *args)["results"]) == 3


# --------------------------------------------------------------------------------------------------
# What it finds: faults of the reference plugin.
#
@pytest.mark.parametrize("mode", ["lat", "bw", "allreduce"])
def test_corruption_is_counted(arena: Arena, mode: str) -> None:
    """One flipped bit in a message of the verified pass makes #wrong 1 or more, and exit 1."""
    # lat and bw: 4 timed messages, then 64 verified ones. all-reduce: 1 + 3 timed operations and 2
    # verified ones, of 2 messages each.
    at = "10" if mode == "allreduce" else "60"
    args = [mode, "--sizes", "4096:3:1"]
    document = arena.document(2, *args, code=WRONG, SOCK_FAULT="corrupt", SOCK_FAULT_AT=at)
    assert document["wrong"] >= 1
    assert document["results"][0]["wrong"] == document["wrong"]


FAULTS = {
    "size": (WRONG, "has 131071 bytes, not 131072"),
    "drop": (HANG, "nothing moved for 3.0 s"),
    "stuck": (HANG, "the plugin's test has not returned"),
    "error": (PLUGIN, "failed with ncclSystemError (2) (channel 0, rank"),
    "norequest": (PLUGIN, "left *request unwritten"),
    "init": (PLUGIN, "its last warning: SOCK: init fails"),
    "close": (PLUGIN, "closing failed"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_of_a_plugin_ends_every_rank_and_is_named(arena: Arena, fault: str) -> None:
    """Each kind of misbehaviour ends every rank, with a code and a text that name it."""
    args = ["allreduce", "--sizes", "512K:3", "--timeout", "3"]
    ended = arena.run(2, *args, SOCK_FAULT=fault)
    code, text = FAULTS[fault]
    # The other rank may learn of it from the first, or see its connection closed.
    assert code in {rank.code for rank in ended}, ended
    assert all(rank.code for rank in ended), ended
    assert any(text in rank.err for rank in ended if rank.code == code), ended


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("/nowhere/libnccl-net-x.so", "can't be loaded"),
        ("no-such-plugin", "libnccl-net-no-such-plugin.so"),
        ("libc.so.6", "has no symbol ncclNetPlugin_v12"),
    ],
)
def test_a_bad_plugin_is_named(arena: Arena, value: str, text: str) -> None:
    """What can't be loaded is said before any peer is waited for."""
    words = [str(arena.bench), "lat", "--rank", "0", "--ranks", "2", "--root", "127.0.0.1:1"]
    words += ["--sizes", "8"]
    done = subprocess.run(
        [*words, "--plugin", value], capture_output=True, text=True, timeout=HANGS_S
    )
    assert done.returncode == PLUGIN
    assert text in done.stderr


def test_a_missing_rank_is_reported(arena: Arena) -> None:
    """The root says how many arrived."""
    port = arena.port()
    root = arena.start(0, 3, port, "allreduce", "--sizes", "8", "--timeout", "3")
    other = arena.start(1, 3, port, "allreduce", "--sizes", "8", "--timeout", "3")
    err = root.communicate(timeout=HANGS_S)[1]
    finish(other)
    assert root.returncode == HANG
    assert "2 of 3 ranks arrived" in err
