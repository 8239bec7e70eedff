# SPDX-License-Identifier: Apache-2.0
"""harp-bench with HARP's plugin and with the reference plugin, which can inject faults."""

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
from driver_rig import TIMEOUT_S, Running, bench, finish

WRONG, HANG, PLUGIN = 1, 3, 4  # exit codes of harp-bench


@dataclasses.dataclass
class Rank:
    """The exit code and the output of a rank."""

    code: int
    out: str
    err: str


class Namespace:
    """Runs ranks in a network namespace that has only a loopback interface."""

    def __init__(self, name: str, bench: Path, plugins: dict[str, Path]) -> None:
        self.name, self.bench, self.plugins = name, bench, plugins
        self._ports = itertools.count(20000)

    def port(self) -> int:
        """An unused TCP port below the kernel's ephemeral ports."""
        return next(self._ports)

    def start(self, rank: int, ranks: int, port: int, *args: str, **env: str) -> Running:
        """Start one rank; args[0] is the mode."""
        mode, *rest = args
        if "--plugin" not in rest:
            rest += ["--plugin", str(self.plugins["sock"])]
        command = bench(mode, rank, ranks, f"127.0.0.1:{port}", "--ifname", "lo", *rest)
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NCCL_DEBUG": "WARN", **env},
        )

    def run(self, ranks: int, *args: str, **env: str) -> list[Rank]:
        """Run all ranks with the same arguments until they exit."""
        port = self.port()
        with contextlib.ExitStack() as stack:
            processes = [self.start(rank, ranks, port, *args, **env) for rank in range(ranks)]
            for process in processes:
                stack.callback(finish, process)
            results = []
            for process in processes:
                out, err = process.communicate(timeout=2 * TIMEOUT_S)
                results.append(Rank(process.returncode, out, err))
            return results

    def document(self, ranks: int, *args: str, code: int = 0, **env: str) -> dict[str, Any]:
        """Run all ranks, which must exit with this code; return rank 0's JSON."""
        results = self.run(ranks, *args, **env)
        assert [rank.code for rank in results] == [code] * ranks, results
        document: dict[str, Any] = json.loads(results[0].out)
        assert document["exit"] == code
        assert document["ok"] == (code == 0)
        return document


@pytest.fixture(scope="module")
def namespace(build_dir: Path, need_root: None) -> Iterator[Namespace]:
    """A namespace, with harp-bench and the plugins of the build."""
    name = f"hx-bench-{os.getpid()}"
    driver = build_dir / "tools/driver"
    plugins = {
        "sock": driver / "libnccl-net-sock.so",
        "harp": build_dir / "plugin/libnccl-net-harp.so",
    }
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield Namespace(name, driver / "harp-bench", plugins)
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


@pytest.fixture(params=["sock", "harp"])
def plugin(request: pytest.FixtureRequest, namespace: Namespace) -> list[str]:
    """The arguments for the reference plugin, or for HARP's with kernel lanes."""
    path = namespace.plugins[request.param]
    if not path.exists():
        pytest.fail(f"{path} was not built")
    return ["--plugin", str(path)]


@pytest.fixture(autouse=True)
def kernel_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The namespace has no NIC for HARP lanes."""
    monkeypatch.setenv("HARP_PATH", "kernel")


# --------------------------------------------------------------------------------------------------
# Measurements.
#


@pytest.mark.parametrize("more", [[], ["--channels", "3"]], ids=" ".join)
def test_bw_measures_bandwidth(namespace: Namespace, plugin: list[str], more: list[str]) -> None:
    """The receiver's window contains all messages of all channels."""
    channels = 3 if "--channels" in more else 1
    args = ["--sizes", "65536:100:10", *more, *plugin]
    document = namespace.document(2, "bw", *args)
    (row,) = document["results"]
    assert row["messages"] == 100 * channels
    assert row["window_us"] > 0
    assert row["wrong"] == 0
    # Each timed, warm-up and verified message is sent once.
    assert document["sent_messages"] == (110 + 64) * channels


def test_sizes_are_measured_in_the_order_given(namespace: Namespace) -> None:
    """Each size has its own number of messages. A size of 0 bytes is valid."""
    document = namespace.document(2, "lat", "--sizes", "4K:30:2,8,64K:20")
    sizes = [(row["size_bytes"], row["messages"]) for row in document["results"]]
    assert sizes == [(4096, 30), (8, 100), (65536, 20)]
    document = namespace.document(2, "bw", "--sizes", "0:20")
    assert [row["size_bytes"] for row in document["results"]] == [0]


@pytest.mark.parametrize(("ranks", "channels"), [(2, 3), (3, 2)])
def test_allreduce_sums_are_right(
    namespace: Namespace, plugin: list[str], ranks: int, channels: int
) -> None:
    """Sums are exact for chunks that are empty, partial, of one slice, or of several rounds."""
    sizes = "4:2:1,36:2:1,2916:2:1,26244:2:1,5000004:2:1"
    args = ["allreduce", "--sizes", sizes, "--channels", str(channels), *plugin]
    results = namespace.document(ranks, *args)["results"]
    assert [row["size_bytes"] for row in results] == [4, 36, 2916, 26244, 5000004]
    assert not any(row["wrong"] for row in results)
    assert all(row["time_us"] > 0 and row["iteration_us"] > 0 for row in results)


def test_alltoall_messages_are_right(namespace: Namespace, plugin: list[str]) -> None:
    args = ["--sizes", "3000,30000,300000", "--channels", "2", *plugin]
    assert len(namespace.document(2, "alltoall", *args)["results"]) == 3


# --------------------------------------------------------------------------------------------------
# Faults that the reference plugin injects.
#
@pytest.mark.parametrize("mode", ["lat", "bw", "allreduce"])
def test_corruption_is_counted(namespace: Namespace, mode: str) -> None:
    """A flipped bit in a verified message is counted in #wrong, and the exit code is 1."""
    # lat and bw send 4 timed and then 64 verified messages. all-reduce runs 4 timed and 2 verified
    # operations of 2 messages each.
    fault_at = "10" if mode == "allreduce" else "60"
    args = [mode, "--sizes", "4096:3:1"]
    document = namespace.document(
        2, *args, code=WRONG, SOCK_FAULT="corrupt", SOCK_FAULT_AT=fault_at
    )
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
def test_each_fault_ends_every_rank_and_is_named(namespace: Namespace, fault: str) -> None:
    """A faulty plugin ends every rank, and one rank reports the fault."""
    args = ["allreduce", "--sizes", "512K:3", "--timeout", "3"]
    results = namespace.run(2, *args, SOCK_FAULT=fault)
    code, text = FAULTS[fault]
    # The other rank may report the first one's error, or that its connection was closed.
    assert code in {rank.code for rank in results}, results
    assert all(rank.code for rank in results), results
    assert any(text in rank.err for rank in results if rank.code == code), results


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("/nowhere/libnccl-net-x.so", "can't be loaded"),
        ("no-such-plugin", "libnccl-net-no-such-plugin.so"),
        ("libc.so.6", "has no symbol ncclNetPlugin_v12"),
    ],
)
def test_an_invalid_plugin_is_named(namespace: Namespace, value: str, text: str) -> None:
    """harp-bench reports a plugin that cannot be loaded before it waits for its peers."""
    command = [str(namespace.bench), "lat", "--rank", "0", "--ranks", "2", "--root", "127.0.0.1:1"]
    command += ["--sizes", "8"]
    done = subprocess.run(
        [*command, "--plugin", value], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == PLUGIN
    assert text in done.stderr


def test_a_missing_rank_is_reported(namespace: Namespace) -> None:
    """The root reports how many ranks arrived."""
    port = namespace.port()
    root = namespace.start(0, 3, port, "allreduce", "--sizes", "8", "--timeout", "3")
    other = namespace.start(1, 3, port, "allreduce", "--sizes", "8", "--timeout", "3")
    err = root.communicate(timeout=TIMEOUT_S)[1]
    finish(other)
    assert root.returncode == HANG
    assert "2 of 3 ranks arrived" in err
