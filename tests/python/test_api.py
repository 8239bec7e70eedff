# SPDX-License-Identifier: Apache-2.0
"""The public names of harp, its stubs, its statistics, and crafted packets."""

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from programs import finished
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

import harp
import harp.testing
from harp.testing import PacketBench

COMPILED = ("_nic", "_core", "_drive", "_instance", "_coll")


# --------------------------------------------------------------------------------------------------
# Names and stubs.
#
def test_public_names_exist_and_are_loaded_lazily() -> None:
    """`import harp` loads no compiled module; each public name is loaded at its first use."""
    code = (
        "import sys, harp\n"
        "loaded = {m for m in sys.modules if m.startswith('harp._')}\n"
        "assert loaded == {'harp._paths'}, loaded\n"
        "assert 'numpy' not in sys.modules\n"
        "for name in harp.__all__:\n"
        "    assert getattr(harp, name) is not None, name\n"
        "assert set(harp.__all__) <= set(dir(harp))\n"
        "try:\n"
        "    harp.Instanze\n"
        "except AttributeError as error:\n"
        "    assert 'Instanze' in str(error)\n"
        "else:\n"
        "    raise SystemExit('an unknown name exists')\n"
    )
    done = finished([sys.executable, "-c", code])
    assert (done.returncode, done.stderr) == (0, "")


# Names that Cython adds, constructors (see below), and names that Python 3.11 does not show.
ALLOWLIST = r"""
.*\.__(reduce|setstate)_cython__
.*\.__(pyx_capi|test)__
.*\.__init__
harp\._core\.Frame\.__buffer__
"""


def test_stubs_match_the_modules(tmp_path: Path) -> None:
    (tmp_path / "mypy.ini").write_text("[mypy]\n")
    (tmp_path / "allowlist").write_text(ALLOWLIST)
    command = [sys.executable, "-m", "mypy.stubtest", "--concise", "--ignore-disjoint-bases"]
    command += ["--mypy-config-file", str(tmp_path / "mypy.ini")]
    command += ["--allowlist", str(tmp_path / "allowlist"), "--ignore-unused-allowlist"]
    command += [f"harp.{name}" for name in COMPILED]
    done = finished(command, cwd=Path(harp.__file__).parents[1])
    assert done.returncode == 0, done.stdout + done.stderr


def constructors() -> Iterator[tuple[str, str, list[str]]]:
    """Yield module, class and parameters of each __init__ in the stubs."""
    for name in COMPILED:
        stub = ast.parse((Path(harp.__file__).parent / f"{name}.pyi").read_text())
        for cls in (node for node in stub.body if isinstance(node, ast.ClassDef)):
            for item in cls.body:
                if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                    args = item.args
                    names = [arg.arg for arg in args.args[1:]]
                    names += [args.vararg.arg] if args.vararg else []
                    yield name, cls.name, names + [arg.arg for arg in args.kwonlyargs]


@pytest.mark.parametrize(("module", "name", "stub"), list(constructors()))
def test_stubs_match_the_constructors(module: str, name: str, stub: list[str]) -> None:
    """stubtest cannot see their signatures, which Cython writes into docstrings."""
    cls = getattr(importlib.import_module(f"harp.{module}"), name)
    if issubclass(cls, Exception):
        return
    head = re.match(rf"{name}\((.*?)\)\n", cls.__doc__, re.DOTALL)
    assert head, f"{name} has no embedded signature: {cls.__doc__[:80]}"
    names = [part.split("=")[0].split()[-1].strip("*") for part in head[1].split(",")]
    assert sorted(name for name in names if name) == sorted(stub)


# --------------------------------------------------------------------------------------------------
# Statistics.
#
def test_snapshots_are_records() -> None:
    with PacketBench() as bench:
        before = bench.stack.snapshot()
        assert before.dtype.names == ("now_ns", *harp.stat_names())
        bench.exchange(after_ns=7)
        after = bench.stack.snapshot()
        assert (after["now_ns"] - before["now_ns"], after["polls"] - before["polls"]) == (7, 1)
        assert {n: int(after[n]) for n in harp.stat_names()} == bench.stack.stats()
        many = np.array([before, after])
        assert many["polls"].tolist() == [before["polls"], after["polls"]]


def test_flows_are_an_array() -> None:
    with harp.testing.pair() as (a, b), b.listen(7000) as acceptor:
        with a.driver.hold():
            assert a.stack.flows().shape == (0,)
        with a.connect(b.address, 7000) as here, acceptor.accept() as there:
            here.send_all(bytes(10000))
            there.recv_array(10000)
            with a.driver.hold():
                (flow,) = a.stack.flows()
                (back,) = b.stack.flows()
            assert (flow["local"], flow["remote"]) == (back["remote"], back["local"])
            assert (flow["remote_port"], back["local_port"]) == (7000, 7000)
            assert flow["state_name"] == "ESTABLISHED"
            assert flow["congestion_name"] == "cubic"
            assert flow["tx_copied_bytes"] == back["rx_copied_bytes"] == 10000
            assert flow["srtt_ns"] > 0


# --------------------------------------------------------------------------------------------------
# Crafted packets.
#
@pytest.mark.parametrize("ipv6", [False, True])
def test_a_handshake_with_scapy(ipv6: bool) -> None:
    with PacketBench(ipv6=ipv6) as bench:
        listener = bench.stack.listen(7000)
        layer = IPv6 if ipv6 else IP
        head = Ether(src=bench.peer_mac, dst=bench.mac) / layer(src=bench.peer, dst=bench.address)
        (answer,) = bench.exchange(head / TCP(sport=40000, dport=7000, flags="S", seq=100))
        assert str(answer[TCP].flags) == "SA"
        assert answer[TCP].ack == 101
        ack = {"sport": 40000, "dport": 7000, "seq": 101, "ack": answer[TCP].seq + 1}
        assert bench.exchange(head / TCP(flags="A", **ack)) == []
        bench.exchange(head / TCP(flags="PA", **ack) / b"by hand")
        conn = listener.accept()
        assert conn is not None
        assert conn.recv() == b"by hand"
        conn.send(b"by HARP")
        (segment,) = bench.exchange()
        assert bytes(segment[TCP].payload) == b"by HARP"
        # Without an answer the stack retransmits.
        retransmitted = bench.wait(3 * 10**9)
        assert {bytes(packet[TCP].payload) for packet in retransmitted} == {b"by HARP"}
        conn.abort()
        listener.close()


def test_the_caller_advances_the_clock() -> None:
    with PacketBench() as bench:
        conn = bench.stack.connect(bench.peer, 9, connect_timeout_ns=2 * 10**9)
        before = bench.now_ns
        bench.wait_for(lambda: conn.error)
        assert 2 * 10**9 <= bench.now_ns - before < 3 * 10**9
        with pytest.raises(AssertionError):
            bench.wait_for(lambda: False, limit_ns=10**6)
        conn.close()
    bench.close()


def test_a_log_function_may_read_but_not_wait() -> None:
    """The stack calls it in poll(), while the driver's lock is held."""
    log: list[str] = []
    with harp.Wire() as wire, harp.Stack(wire.port(0), log=lambda _, text: log.append(text)) as a:
        with harp.Driver(a) as driver, driver.hold():
            with pytest.raises(OSError, match="Invalid"):
                a.listen(1, dscp=64)
    assert any("dscp" in text for text in log)
