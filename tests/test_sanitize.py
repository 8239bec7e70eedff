# SPDX-License-Identifier: Apache-2.0
"""`make sanitize`: tests in builds with sanitizers.

One build has AddressSanitizer (with leaks) and UndefinedBehaviorSanitizer, the other
ThreadSanitizer. Both run unit tests, the simulator, fuzz corpora, DPDK ports, conformance, ranks
with several engines and packet tests. The first also runs leases and pins, the second all modes of
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

OPTIONS = ("-Dpython=enabled", "-Doptimization=1")  # gcc needs minutes for Cython's C with -O3
SEEDS_DIVISOR = 5  # instrumented code is slower: 500 of each part's 2500 seeds
TIMEOUT_FACTOR = 10
# One ABI version with kernel lanes, others with HARP lanes: below the shims, all share the code.
PLUGIN = {
    "conform-v12",
    "conform-auto-v12",
    "conform-xdp-v9",
    "conform-xdp-ipv6-v10",
    "conform-dpdk-v12",
}
SUITES = {"unit", "sim", "fuzz", "example", "dpdk"}
# A quarter of an hour each, and they run the same code as the seeds.
EXCLUDED = {"goodput is as the tables say", "a slow lane costs what the table says"}


def _cases() -> list[str]:
    build = _paths.build_dir()
    tests = meson_tests(build) if build else ()
    names = [test["name"] for test in tests if SUITES.intersection(suites(test))]
    return [*(name for name in names if name not in EXCLUDED), *sorted(PLUGIN)]


CASES = _cases()


def test_the_lists_are_not_empty() -> None:
    """With an empty list, pytest would skip the tests below without a message."""
    assert set(CASES) >= PLUGIN
    assert len(CASES) > 70


def instrumented_test(build: Path, name: str) -> dict[str, Any]:
    """Return a test of a build, with fewer seeds and a longer timeout."""
    (test,) = (test for test in meson_tests(build) if test["name"] == name)
    command = list(test["cmd"])
    if "--seeds" in command:
        command[-1] = str(int(command[-1]) // SEEDS_DIVISOR)
    return {**test, "cmd": command, "timeout": test["timeout"] * TIMEOUT_FACTOR}


def run_pytest(
    build: Path, tests: str, command: list[Any], env: Mapping[str, str], *libraries: str
) -> None:
    """Run tests of a build's bindings and tools, with a sanitizer that is preloaded."""
    paths = [output(["gcc", f"-print-file-name={name}"]).strip() for name in libraries]
    assert all(Path(path).is_absolute() for path in paths), paths
    preload = ["env", f"LD_PRELOAD={' '.join(paths)}", f"HARP_BUILD={build}"]
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", tests]
    output(
        [*command, *preload, sys.executable, *arguments],
        cwd=Path(__file__).parent.parent,
        env=env,
        timeout_s=1800,
    )


# --------------------------------------------------------------------------------------------------
# AddressSanitizer, by gcc: clang can't link it into a library with -z defs.
#
ADDRESS = {
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}
# LeakSanitizer misreads the thread-local memory of libraries that are opened late, such as DPDK's.
DPDK_ADDRESS = ADDRESS | {"ASAN_OPTIONS": f"{ADDRESS['ASAN_OPTIONS']}:intercept_tls_get_addr=0"}
# The interpreter does not free its memory at exit.
ADDRESS_PYTHON = ADDRESS | {"ASAN_OPTIONS": "detect_leaks=0:strict_string_checks=1"}


@pytest.fixture(scope="session")
def address_build(root_dir: Path) -> Path:
    return built(root_dir, "address", "-Db_sanitize=address,undefined", *OPTIONS)


@pytest.mark.parametrize("name", CASES)
def test_address_and_undefined(address_build: Path, name: str) -> None:
    """No access outside an object, no leak, no undefined arithmetic."""
    run_meson_test(
        instrumented_test(address_build, name), DPDK_ADDRESS if "dpdk" in name else ADDRESS
    )


def test_address_packets(address_build: Path) -> None:
    run_pytest(address_build, "tests/packet", [], ADDRESS_PYTHON, "libasan.so", "libubsan.so")


@pytest.mark.parametrize("tests", ["test_pins", "test_sharing"])
def test_address_instances(address_build: Path, need_root: None, tests: str) -> None:
    """Queues are opened and closed; XDP programs are pinned, replaced and shared."""
    path = f"tests/netns/{tests}.py"
    run_pytest(address_build, path, [], ADDRESS_PYTHON, "libasan.so", "libubsan.so")


# --------------------------------------------------------------------------------------------------
# ThreadSanitizer. Its exit status after a report is 66.
#
THREAD_OPTIONS = "exitcode=66:second_deadlock_stack=1"
THREAD = {"TSAN_OPTIONS": THREAD_OPTIONS}
# The distribution's DPDK is not instrumented, so ThreadSanitizer misses some of its locking.
DPDK_THREAD = {"TSAN_OPTIONS": f"{THREAD_OPTIONS}:ignore_noninstrumented_modules=1"}


@pytest.fixture(scope="session")
def thread_build(root_dir: Path) -> Path:
    return built(root_dir, "thread", "-Db_sanitize=thread", *OPTIONS)


def limit_aslr(command: list[Any]) -> list[Any]:
    """gcc 12's ThreadSanitizer can't map its shadow memory with more than 28 bits of ASLR."""
    bits = Path("/proc/sys/vm/mmap_rnd_bits")
    return ["setarch", "-R", *command] if bits.exists() and int(bits.read_text()) > 28 else command


@pytest.mark.parametrize("name", CASES)
def test_thread(thread_build: Path, name: str) -> None:
    """No data race."""
    test = instrumented_test(thread_build, name)
    env = DPDK_THREAD if "dpdk" in name else THREAD
    run_meson_test({**test, "cmd": limit_aslr(test["cmd"])}, env)


def run_collectives(build: Path, env: Mapping[str, str]) -> None:
    """Run ranks as threads over the plugin. CASES runs them over reference sockets."""
    test = instrumented_test(build, "test_coll_threads")
    plugin = {"HARP_COLL_NET": str(build / "plugin/libnccl-net-harp.so"), "HARP_PATH": "kernel"}
    command = limit_aslr(test["cmd"]) if "TSAN_OPTIONS" in env else test["cmd"]
    run_meson_test({**test, "cmd": command}, {**env, **plugin, "HARP_DAEMON": "off"})


def test_thread_collectives(thread_build: Path) -> None:
    """No data race between threads that wait, the background thread and the plugin's threads."""
    run_collectives(thread_build, THREAD)


def test_address_collectives(address_build: Path) -> None:
    """No memory is leaked after the last group is closed."""
    run_collectives(address_build, ADDRESS)


def test_thread_packets(thread_build: Path) -> None:
    run_pytest(thread_build, "tests/packet", limit_aslr([]), THREAD, "libtsan.so")


BENCHES = {
    "allreduce": ("allreduce", "--sizes", "4:20,2048:20,131072:20,1M:20", "--channels", "2"),
    "alltoall": ("alltoall", "--sizes", "200000:300", "--channels", "2"),
    "lat": ("lat", "--sizes", "8:300,560:300,39200:300"),
}


def run_bench(build: Path, mode: str, options: LabOptions, env: Mapping[str, str]) -> list[str]:
    """Run two ranks of harp-bench without a wrong byte or sanitizer report. Return their logs."""

    def command(host: Host, root: Host) -> list[Any]:
        args = [build / "tools/driver/harp-bench", *BENCHES[mode]]
        args += ["--rank", str(host.index), "--ranks", "2", "--root", f"{root.address}:7000"]
        args += ["--plugin", build / "plugin/libnccl-net-harp.so"]
        return [*args, "--ifname", f"={host.ifname}", "--timeout", "60"]

    wrap = limit_aslr if "TSAN_OPTIONS" in env else list
    with Lab(options) as lab:
        ranks = [
            host.popen(wrap(command(host, lab.hosts[0])), env=os.environ | dict(env))
            for host in lab.hosts
        ]
        outputs = [rank.communicate(timeout=300) for rank in ranks]
    for rank, (_, err) in zip(ranks, outputs, strict=True):
        assert "Sanitizer" not in err, err[:8000]
        assert rank.returncode == 0, err[-4000:]
    document = json.loads(outputs[0][0])
    assert document["results"]
    assert document["wrong"] == 0
    return [err for _, err in outputs]


@pytest.mark.parametrize("path", ["xdp", "kernel"])
@pytest.mark.parametrize("mode", BENCHES)
def test_thread_plugin(thread_build: Path, need_root: None, mode: str, path: str) -> None:
    """No data race between NCCL's service and progress threads and the plugin's threads."""
    env = THREAD | {"HARP_PATH": path, "HARP_DAEMON": "off", "NCCL_DEBUG": "WARN"}
    run_bench(thread_build, mode, LabOptions(), env)


# HARP does not know the hash of the four queues, so it sends SYNs from several ports.
ENGINES = {"HARP_PATH": "xdp", "HARP_INSTANCES": "4", "HARP_DAEMON": "off", "NCCL_DEBUG": "INFO"}
FOUR_QUEUES = LabOptions(queues=4, rss="hash:1")


def check_engines(logs: list[str]) -> None:
    """In each rank, lanes use more than one instance."""
    for log in logs:
        lanes = [line for line in log.splitlines() if re.search("connected by HARP|accepted", line)]
        queues = {match[1] for line in lanes if (match := re.search(r" queue (\d+)", line))}
        assert len(queues) > 1, log[-8000:]


def test_thread_engines(thread_build: Path, need_root: None) -> None:
    """No data race while the control thread polls four engines."""
    check_engines(run_bench(thread_build, "allreduce", FOUR_QUEUES, THREAD | ENGINES))


def test_address_engines(address_build: Path, need_root: None) -> None:
    """No memory of engines, their listeners and XDP programs is leaked."""
    check_engines(run_bench(address_build, "allreduce", FOUR_QUEUES, ADDRESS | ENGINES))
