# SPDX-License-Identifier: Apache-2.0
"""The plugin's tuner: its cost model, and its tables, called as NCCL calls them."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harp import tuner
from harp.errors import HarpError

HOST = socket.gethostname()
TEXT = f"""version = 1
host = "{HOST}"

[tuner]
latency_ns = 20000
rates = "16384:300 65536:700 262144:1100 1048576:1200"
channels = "1:1100 2:1150 4:1120"
"""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.toml"
    path.write_text(TEXT)
    return path


def choose(profile: Path, operation: str, size: int, ranks: int, hosts: int) -> tuple[str, str]:
    explanation = tuner.explain(profile, operation, size, ranks, hosts)
    (row,) = (row for row in explanation["costs"] if row["chosen"])
    return row["algorithm"], row["protocol"]


def test_small_operations_minimize_hops_and_large_ones_bytes(profile: Path) -> None:
    assert choose(profile, "allreduce", 1024, 8, 8) == ("tree", "LL")
    assert choose(profile, "allgather", 1024, 16, 16) == ("PAT", "Simple")
    assert choose(profile, "broadcast", 64 << 20, 8, 8)[1] != "LL"
    assert choose(profile, "allreduce", 1 << 30, 16, 2)[1] == "Simple"
    assert choose(profile, "allreduce", 1 << 30, 8, 8) == ("ring", "Simple")


def test_costs_follow_the_formula(profile: Path) -> None:
    explanation = tuner.explain(profile, "allreduce", 1 << 20, 4, 4)
    cost = {(row["algorithm"], row["protocol"]): row["us"] for row in explanation["costs"]}
    # 6 hops of 20 us, plus 12.3 us each for Simple; 1.5 MiB at the rate of 256 KiB messages.
    assert cost["ring", "Simple"] == pytest.approx(6 * 32.3 + 1.5 * (1 << 20) / 1100, rel=1e-5)
    # 4 hops; 2 MiB in messages of 512 KiB, whose rate is interpolated from 1100 and 1200 MB/s.
    rate = 1100 + 100 * (524288 - 262144) / (1048576 - 262144)
    assert cost["tree", "Simple"] == pytest.approx(4 * 32.3 + 2 * (1 << 20) / rate, rel=1e-5)
    # LL sends twice the data, in messages of at most 64 KiB.
    assert cost["ring", "LL"] == pytest.approx(6 * 21 + 1.5 * (2 << 20) / 700, rel=1e-5)


def test_one_channel_is_used_unless_more_are_faster(profile: Path) -> None:
    assert tuner.explain(profile, "allreduce", 1 << 20, 4, 4)["channels"] == 1
    profile.write_text(TEXT.replace("2:1150", "2:1700"))
    assert tuner.explain(profile, "allreduce", 1 << 20, 4, 4)["channels"] is None


def test_chunks_are_as_small_as_the_rate_allows(profile: Path) -> None:
    assert tuner.explain(profile, "allreduce", 1 << 20, 4, 4)["chunk_bytes"] == 262144
    profile.write_text(TEXT.replace("262144:1100", "262144:800"))
    assert tuner.explain(profile, "allreduce", 1 << 20, 4, 4)["chunk_bytes"] == 1048576


# Calls a table as NCCL does, in a process that starts with the variables.
CALLS = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
version, nodes = int(sys.argv[2]), int(sys.argv[3])
table = (ctypes.c_void_p * 5).in_dll(lib, f"ncclTunerPlugin_v{version}")
def function(index, *arguments):
    return ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(table[index])
P, I, Z = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
context = P(0xbad)
if version < 5:
    result = function(1, Z, Z, P, P)(nodes, nodes, None, ctypes.addressof(context))
else:
    init = function(1, P, ctypes.c_uint64, Z, Z, P, P, P)
    result = init(ctypes.addressof(context), 7, nodes, nodes, None, None, None)
assert result == 0 and (context.value or 0) != 0xbad
channels, algorithm, protocol = I(0), I(-1), I(-1)
costs = (ctypes.c_float * 21)(*[-1.0] * 21)
costs[1 * 3 + 0] = costs[1 * 3 + 2] = costs[0 * 3 + 2] = 5.0  # ring LL, ring Simple, tree Simple
costs[4 * 3 + 2] = 6.0  # NVLS: unknown to HARP
at = ctypes.addressof
if version == 2:
    info = function(2, P, I, Z, I, I, I, P, P, P)
    assert info(context, 4, 1 << 30, 0, 0, 1, at(algorithm), at(protocol), at(channels)) == 0
elif version == 3:
    info = function(2, P, I, Z, I, P, I, I, P)
    assert info(context, 4, 1 << 30, 1, at(costs), 7, 3, at(channels)) == 0
else:
    info = function(2, P, I, Z, I, P, I, I, I, P)
    assert info(context, 4, 1 << 30, 1, at(costs), 7, 3, 0, at(channels)) == 0
chunk = Z(1 << 20)
if version == 6:
    assert function(4, P, I, Z, I, I, I, P)(context, 4, 1 << 30, 1, 2, 1, at(chunk)) == 0
assert function(3, P)(context) == 0
print(channels.value, algorithm.value, protocol.value, chunk.value, *costs)
"""


def call(plugin: Path, version: int, nodes: int, **environ: str) -> list[float]:
    result = subprocess.run(
        [sys.executable, "-c", CALLS, plugin, str(version), str(nodes)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environ,
    )
    assert result.returncode == 0, result.stderr
    return [float(word) for word in result.stdout.split()]


@pytest.fixture
def plugin(build_dir: Path) -> Path:
    return build_dir / "plugin" / "libnccl-net-harp.so"


@pytest.mark.parametrize("version", [2, 3, 4, 5, 6])
def test_every_table_version_chooses_ring_simple(plugin: Path, profile: Path, version: int) -> None:
    channels, algorithm, protocol, chunk, *costs = call(
        plugin, version, 8, HARP_PROFILE=str(profile)
    )
    assert channels == 1
    if version == 2:
        assert (algorithm, protocol) == (1, 2)  # ring, Simple
        return
    # Ignored entries stay at -1, unknown algorithms keep NCCL's cost, all others are replaced.
    replaced = {3, 5, 2}
    assert all(costs[i] == -1 for i in range(21) if i not in replaced | {14})
    assert costs[14] == 6
    assert all(costs[i] > 1000 for i in replaced)
    assert chunk == (262144 if version == 6 else 1 << 20)


UNCHANGED: list[Any] = [0, -1, -1, 1 << 20]


@pytest.mark.parametrize("version", [2, 3, 6])
def test_costs_are_unchanged_on_one_host_or_without_times(
    plugin: Path, profile: Path, version: int, tmp_path: Path
) -> None:
    assert call(plugin, version, 1, HARP_PROFILE=str(profile))[:4] == UNCHANGED
    assert call(plugin, version, 8, HARP_PROFILE=str(tmp_path / "none"))[:4] == UNCHANGED
    profile.write_text(TEXT.partition("[tuner]")[0])
    values = call(plugin, version, 8, HARP_PROFILE=str(profile))
    assert values[:4] == UNCHANGED
    assert set(values[4:]) == {-1.0, 5.0, 6.0}


def test_version_2_respects_nccl_algo(plugin: Path, profile: Path) -> None:
    values = call(plugin, 2, 8, HARP_PROFILE=str(profile), NCCL_ALGO="Tree")
    assert values[:4] == UNCHANGED


def test_a_profile_without_times_is_an_error_with_a_remedy(profile: Path) -> None:
    profile.write_text(TEXT.partition("[tuner]")[0])
    with pytest.raises(HarpError, match="harpctl tune --nccl"):
        tuner.explain(profile, "allreduce", 1024, 2, 2)


def test_the_profile_of_another_host_is_rejected_in_one_line(plugin: Path, profile: Path) -> None:
    profile.write_text(TEXT.replace(f'"{HOST}"', '"elsewhere"'))
    with pytest.raises(HarpError, match=f"it is of host elsewhere, and this is {HOST}") as error:
        tuner.explain(profile, "allreduce", 1024, 2, 2)
    assert "\n" not in str(error.value)
    values = call(plugin, 6, 8, HARP_PROFILE=str(profile))
    assert values[:4] == UNCHANGED
    assert set(values[4:]) == {-1.0, 5.0, 6.0}
