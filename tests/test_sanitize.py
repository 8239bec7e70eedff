# SPDX-License-Identifier: Apache-2.0
"""`make sanitize`: the whole suite in builds with sanitizers.

One build has AddressSanitizer (with leaks) and UndefinedBehaviorSanitizer, the other
ThreadSanitizer. Both run unit tests, the simulator, fuzz corpora, DPDK ports, conformance, ranks of
several engines and packet tests. The first also runs leases and pins, the second all modes of
harp-bench. Builds are in build-long/ and are updated. To run one half: -k address, -k thread.
"""

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from build_trees import built, meson_tests, output, run_meson_test, suites

from harp import _paths
from harp.lab import Host, Lab, LabOptions

pytestmark = pytest.mark.long

OPTIONS = ("-Dpython=enabled", "-Doptimization=1")  # Cython's C takes gcc minutes at 3
SEEDS_DIVISOR = 5  # watched code is that much slower, or more: 500 of each part's 2500 seeds
SLOWER = 10  # than it is else
# One version over kernel lanes, others over HARP's: the code beneath the shims is one.
PLUGIN = {
    "conform-v12",
    "conform-auto-v12",
    "conform-xdp-v9",
    "conform-xdp-ipv6-v10",
    "conform-dpdk-v12",
}
WHOLE = {"unit", "sim", "fuzz", "example", "dpdk"}
# A quarter of an hour each, and nothing new beside the seeds.
LEFT_OUT = {"goodput is as the tables say", "a slow lane costs what the table says"}


def _cases() -> list[str]:
    build = _paths.build_dir()
    tests = meson_tests(build) if build else ()
    names = [test["name"] for test in tests if WHOLE.intersection(suites(test))]
    return [*(name for name in names if name not in LEFT_OUT), *sorted(PLUGIN)]


CASES = _cases()


def test_the_lists_hold_something() -> None:
    """An empty one would make the tests below vanish in silence."""
    assert set(CASES) >= PLUGIN
    assert len(CASES) > 70


def watched(build: Path, name: str) -> dict[str, Any]:
    """One test of a build, with fewer seeds and more time."""
    (test,) = (test for test in meson_tests(build) if test["name"] == name)
    command = list(test["cmd"])
    if "--seeds" in command:
        command[-1] = str(int(command[-1]) // SEEDS_DIVISOR)
    return {**test, "cmd": command, "timeout": test["timeout"] * SLOWER}


def preloaded(
    build: Path, tests: str, command: list[Any], env: Mapping[str, str], *libraries: str
) -> None:
    """Tests over a build's bindings and tools; the interpreter is not linked with a sanitizer."""
    found = [output(["gcc", f"-print-file-name={name}"]).strip() for name in libraries]
    assert all(Path(path).is_absolute() for path in found), found
    preload = ["env", f"LD_PRELOAD={' '.join(found)}", f"HARP_BUILD={build}"]
    pytest_words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", tests]
    output(
        [*command, *preload, sys.executable, *pytest_words],
        cwd=Path(__file__).parent.parent,
        env=env,
        timeout_s=1800,
    )


# --------------------------------------------------------------------------------------------------
# By gcc: clang can't link these sanitizers into a library with -z defs.
#
ADDRESS = {
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}
# LeakSanitizer misreads the thread-local memory of a library that was opened as late as DPDK's.
DPDK_ADDRESS = ADDRESS | {"ASAN_OPTIONS": f"{ADDRESS['ASAN_OPTIONS']}:intercept_tls_get_addr=0"}
# The interpreter keeps what it has until its end.
ADDRESS_PYTHON = ADDRESS | {"ASAN_OPTIONS": "detect_leaks=0:strict_string_checks=1"}


@pytest.fixture(scope="session")
def address_build(root_dir: Path) -> Path:
    return built(root_dir, "address", "-Db_sanitize=address,undefined", *OPTIONS)


@pytest.mark.parametrize("name", CASES)
def test_address_and_undefined(address_build: Path, name: str) -> None:
    """No access outside an object, no leak, no undefined arithmetic."""
    run_meson_test(watched(address_build, name), DPDK_ADDRESS if "dpdk" in name else ADDRESS)


def test_address_packets(address_build: Path) -> None:
    preloaded(address_build, "tests/packet", [], ADDRESS_PYTHON, "libasan.so", "libubsan.so")


@pytest.mark.parametrize("tests", ["test_pins", "test_sharing"])
def test_address_instances(address_build: Path, need_root: None, tests: str) -> None:
    """Queues that are opened and closed; programs that are pinned, replaced and shared."""
    path = f"tests/netns/{tests}.py"
    preloaded(address_build, path, [], ADDRESS_PYTHON, "libasan.so", "libubsan.so")


# --------------------------------------------------------------------------------------------------
# ThreadSanitizer. Exit status 66 when it has reported something.
#
THREAD_OPTIONS = "exitcode=66:second_deadlock_stack=1"
THREAD = {"TSAN_OPTIONS": THREAD_OPTIONS}
# DPDK is the distribution's build: what it does with memory and locks of its own is not seen whole.
DPDK_THREAD = {"TSAN_OPTIONS": f"{THREAD_OPTIONS}:ignore_noninstrumented_modules=1"}


@pytest.fixture(scope="session")
def thread_build(root_dir: Path) -> Path:
    return built(root_dir, "thread", "-Db_sanitize=thread", *OPTIONS)


def mapped(command: list[Any]) -> list[Any]:
    """gcc 12's ThreadSanitizer can't map its shadow beside more than 28 bits of randomness."""
    bits = Path("/proc/sys/vm/mmap_rnd_bits")
    return ["setarch", "-R", *command] if bits.exists() and int(bits.read_text()) > 28 else command


@pytest.mark.parametrize("name", CASES)
def test_thread(thread_build: Path, name: str) -> None:
    """No data race."""
    test = watched(thread_build, name)
    env = DPDK_THREAD if "dpdk" in name else THREAD
    run_meson_test({**test, "cmd": mapped(test["cmd"])}, env)


def collectives(build: Path, env: Mapping[str, str]) -> None:
    """Ranks that are threads, over the plugin itself; CASES has them over reference sockets."""
    test = watched(build, "test_coll_threads")
    plugin = {"HARP_COLL_NET": str(build / "plugin/libnccl-net-harp.so"), "HARP_PATH": "kernel"}
    command = mapped(test["cmd"]) if "TSAN_OPTIONS" in env else test["cmd"]
    run_meson_test({**test, "cmd": command}, {**env, **plugin, "HARP_DAEMON": "off"})


def test_thread_collectives(thread_build: Path) -> None:
    """No data race between threads that wait, the background thread and the plugin's threads."""
    collectives(thread_build, THREAD)


def test_address_collectives(address_build: Path) -> None:
    """Nothing is left when the last group is closed."""
    collectives(address_build, ADDRESS)


def test_thread_packets(thread_build: Path) -> None:
    preloaded(thread_build, "tests/packet", mapped([]), THREAD, "libtsan.so")


BENCHES = {
    "allreduce": ("allreduce", "--sizes", "4:20,2048:20,131072:20,1M:20", "--channels", "2"),
    "alltoall": ("alltoall", "--sizes", "200000:300", "--channels", "2"),
    "lat": ("lat", "--sizes", "8:300,560:300,39200:300"),
}


def bench(build: Path, mode: str, options: LabOptions, env: Mapping[str, str]) -> list[str]:
    """Two ranks of a build's harp-bench: every byte right, nothing reported. What each said."""

    def command(host: Host, root: Host) -> list[Any]:
        words = [build / "tools/driver/harp-bench", *BENCHES[mode]]
        words += ["--rank", str(host.index), "--ranks", "2", "--root", f"{root.address}:7000"]
        words += ["--plugin", build / "plugin/libnccl-net-harp.so"]
        return [*words, "--ifname", f"={host.ifname}", "--timeout", "60"]

    started = mapped if "TSAN_OPTIONS" in env else list
    with Lab(options) as lab:
        ranks = [
            host.popen(started(command(host, lab.hosts[0])), env=os.environ | dict(env))
            for host in lab.hosts
        ]
        ended = [rank.communicate(timeout=300) for rank in ranks]
    for rank, (_, err) in zip(ranks, ended, strict=True):
        assert "Sanitizer" not in err, err[:8000]
        assert rank.returncode == 0, err[-4000:]
    document = json.loads(ended[0][0])
    assert document["results"]
    assert document["wrong"] == 0
    return [err for _, err in ended]


@pytest.mark.parametrize("path", ["xdp", "kernel"])
@pytest.mark.parametrize("mode", BENCHES)
def test_thread_plugin(thread_build: Path, need_root: None, mode: str, path: str) -> None:
    """Service, progress and our own threads of two ranks: no data race, and every byte right."""
    env = THREAD | {"HARP_PATH": path, "HARP_DAEMON": "off", "NCCL_DEBUG": "WARN"}
    bench(thread_build, mode, LabOptions(), env)


# Four queues whose hash nobody knows: SYNs from several ports, the first that gets through is it.
ENGINES = {"HARP_PATH": "xdp", "HARP_INSTANCES": "4", "HARP_DAEMON": "off", "NCCL_DEBUG": "INFO"}
FOUR_QUEUES = LabOptions(queues=4, rss="hash:1")


def engines_used(said: list[str]) -> None:
    """Of each rank, more than one instance carried something."""
    for err in said:
        lanes = [line for line in err.splitlines() if re.search("connected by HARP|accepted", line)]
        queues = {found[1] for line in lanes if (found := re.search(r" queue (\d+)", line))}
        assert len(queues) > 1, err[-8000:]


def test_thread_engines(thread_build: Path, need_root: None) -> None:
    """The control thread polls four engines."""
    engines_used(bench(thread_build, "allreduce", FOUR_QUEUES, THREAD | ENGINES))


def test_address_engines(address_build: Path, need_root: None) -> None:
    """Nothing of several engines, their listeners and programs is left at the end."""
    engines_used(bench(address_build, "allreduce", FOUR_QUEUES, ADDRESS | ENGINES))
