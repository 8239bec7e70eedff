# SPDX-License-Identifier: Apache-2.0
"""Use and misuse of harp.dpdk: `bindings_scenes.py SCENE`, each scene in its own process, because a
process can start DPDK only once. test_bindings.py runs them; a failing scene raises."""

import errno
import gc
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import ARP, Ether

import harp
from harp import dpdk
from harp.dpdk.supersocket import DpdkSocket

MEMORY_MIB = 64
WAIT_S = 60


@contextmanager
def refused(error: int, *words: str) -> Iterator[None]:
    """A DpdkError with this number and these words."""
    with pytest.raises(dpdk.DpdkError) as caught:
        yield
    text = str(caught.value)
    assert caught.value.errno == error, (errno.errorcode.get(caught.value.errno), text)
    assert all(word in text for word in words), (words, text)
    assert "\n" not in text


def numbered(count: int, size: int = 60) -> list[bytes]:
    """Packets that differ."""
    return [index.to_bytes(2, "big") * (size // 2) for index in range(count)]


def ring() -> dpdk.Port:
    """A port that receives what it sends."""
    return dpdk.Port("net_ring0", pool=dpdk.Pool(1023))


def kernels(ifname: str) -> Any:
    """An interface as the kernel sees it."""
    words = ["ip", "-j", "link", "show", ifname]
    return json.loads(subprocess.run(words, capture_output=True, check=True).stdout)[0]


# --------------------------------------------------------------------------------------------------
# Use.
#
def start_is_once_and_stays() -> None:
    """A second start is accepted; one with other arguments is refused."""
    dpdk.start()
    with refused(errno.EALREADY):
        dpdk.start(args="--no-such-thing")


def specs_set_mtu_and_queues() -> None:
    """A port's text, as the stack takes it."""
    with dpdk.Port("dpdk:net_null0;mtu=900;queues=3;frames=600;ip=10.0.0.1/24") as port:
        info = port.info
        assert (info.mtu_bytes, info.rx_queues, port.pool.count) == (900, 3, 600)
        with port.receive(queue=2) as burst:
            assert len(burst)


def bytes_come_back() -> None:
    """Packets of one and of several segments, whole and in order."""
    with ring() as port:
        given = [*numbered(20), os.urandom(5000), os.urandom(2048), os.urandom(2049)]
        assert port.send(given) == len(given)
        with port.receive(64, timeout=5) as got:
            assert [bytes(packet) for packet in got] == given
            assert [len(packet.segments) for packet in got][-3:] == [3, 1, 2]
            assert bytes(got[-1]) == given[-1]
        assert port.pool.in_use == 0


def views_are_the_packet() -> None:
    """A view or an array is the packet's memory: nothing is copied."""
    with ring() as port:
        burst = port.pool.build([bytes(100)] * 2)
        burst[0].data[:] = b"x" * 100
        array = np.frombuffer(burst[1].data, np.uint8)
        array[:97] = np.arange(97)
        array[97:] = list(b"abc")
        del array
        assert port.send(burst) == 2
        assert len(burst) == 0
        got = port.receive(timeout=5)
        assert bytes(got[0].data) == b"x" * 100
        assert bytes(got[1]) == bytes(range(97)) + b"abc"
        got.free()


def a_full_ring_takes_no_more() -> None:
    """send() returns how many were sent. The others stay in the burst, or return to the pool."""
    with dpdk.Port("net_ring0", pool=dpdk.Pool(4095)) as port:
        burst = port.pool.build(numbered(2000))
        sent = port.send(burst, timeout=0)
        assert 0 < sent < 2000
        assert len(burst) == 2000 - sent
        assert bytes(burst[0]) == numbered(2000)[sent]
        assert port.send(b"z" * 60, timeout=0) == 0
        assert port.pool.in_use == 2000
        burst.free()
        taken = 0
        while got := len(burst := port.receive(512)):
            taken += got
            burst.free()
        assert (taken, port.pool.in_use) == (sent, 0)


def ports_say_what_they_are() -> None:
    """info: driver, queues, MTU, MAC address, promiscuous mode; link."""
    with dpdk.Port("net_tap0,iface=harpcffi0;mtu=1400;queues=2;name=tap") as port:
        info = port.info
        assert (info.driver, info.bus, info.mtu_bytes) == ("net_tap", "vdev", 1400)
        assert (info.rx_queues, info.tx_queues, info.numa_node) == (2, 2, -1)
        assert info.started
        assert info.driver_copies
        assert "MULTI_SEGS" in info.tx_offloads
        assert kernels("harpcffi0")["mtu"] == 1400
        assert kernels("harpcffi0")["address"] == info.mac
        assert info.promiscuous
        assert port.link.up


def counters_count() -> None:
    """Basic counters, and the driver's."""
    with ring() as port:
        port.send(numbered(7))
        port.receive(timeout=5).free()
        assert port.stats()["tx_packets"] == port.stats()["rx_packets"] == 7
        assert port.xstats()["rx_good_packets"] == 7
        assert "rx_missed_errors" in port.xstats()


def stopped_ports_go_on() -> None:
    """A stopped port starts again; a closed device can be opened again."""
    with ring() as port:
        port.stop()
        port.stop()
        with refused(errno.EBADF, "stopped"):
            port.receive()
        with refused(errno.EBADF, "stopped"):
            port.send(b"a" * 60)
        port.start()
        assert port.send(b"a" * 60) == 1
    for _ in range(5):
        with ring() as port:
            assert port.send(numbered(3)) == 3


def a_stack_runs_in_the_same_process() -> None:
    """On the other end of a memif, it answers scapy."""
    us = "02:00:00:00:00:01"
    with tempfile.TemporaryDirectory() as folder:
        wire = f"socket={folder}/memif.sock"
        with dpdk.Port(f"net_memif0,role=server,{wire}") as port, DpdkSocket(port) as sock:
            stack = harp.Instance(f"dpdk:net_memif1,role=client,{wire};ip=10.78.0.1/24",
                                  huge_pages="never", dpdk_memory_mib=MEMORY_MIB)  # fmt: skip
            deadline = time.monotonic() + WAIT_S
            while not port.link.up:
                assert time.monotonic() < deadline, "no link"
                time.sleep(0.005)
            me = {"hwsrc": us, "psrc": "10.78.0.2"}
            ask = Ether(src=us, dst="ff:ff:ff:ff:ff:ff") / ARP(op=1, pdst="10.78.0.1", **me)
            answer = sock.sr1(ask, timeout=WAIT_S, retry=-3, verbose=0)
            assert answer[ARP].psrc == "10.78.0.1"
            ip = IP(src="10.78.0.2", dst="10.78.0.1")
            ping = Ether(src=us, dst=answer[ARP].hwsrc) / ip / ICMP() / b"harp"
            assert sock.sr1(ping, timeout=WAIT_S, verbose=0)[ICMP].type == 0
            # What the driver copied is counted, in the stack's statistics.
            assert stack.stats()["nic_driver_copied_bytes"] > 0
            stack.close()
            assert port.send(b"x" * 60) in (0, 1)


# --------------------------------------------------------------------------------------------------
# Misuse.
#
def used_after_the_end() -> None:
    """Packets, bursts and ports raise an error after their end."""
    port = ring()
    port.send(numbered(3))
    got = port.receive(timeout=5)
    packet, view = got[0], got[1].data
    got.free()
    got.free()
    for call in (lambda: bytes(packet), lambda: packet.data, lambda: len(packet), lambda: got[0]):
        with refused(errno.EBADF, "after the end"):
            call()
    with refused(errno.EBADF):
        port.send(got)
    with pytest.raises(ValueError, match="released"):
        view[0]
    burst = port.pool.build(numbered(2))
    sent = burst[0]
    port.send(burst)
    with refused(errno.EBADF, "sent"):
        bytes(sent)
    pool = port.pool
    port.close()
    port.close()
    for call in (port.receive, port.start, port.stop, port.stats, port.xstats, lambda: port.info,
                 lambda: port.send(b"x" * 60)):  # fmt: skip
        with refused(errno.EBADF, "net_ring0", "closed"):
            call()
    burst.free()
    # net_ring keeps what was in the ring, so the pool is in use.
    with refused(errno.EBUSY, "2 buffers"):
        pool.close()


def held_bytes_keep_the_packet() -> None:
    """While a slice or an array refers to a packet, free() and send() refuse it."""
    with ring() as port:
        burst = port.pool.build(numbered(2))
        piece = burst[1].data[10:20]
        with refused(errno.EBUSY, "in use"):
            burst.free()
        with refused(errno.EBUSY, "in use"):
            port.send(burst)
        assert bytes(piece) == numbered(2)[1][10:20]
        del piece
        array = np.frombuffer(burst[0].data, np.uint8)
        with refused(errno.EBUSY, "in use"):
            burst.free()
        # The burst is collected; the packets are freed after the array.
        gone = weakref.ref(burst)
        del burst
        gc.collect()
        assert gone() is None
        assert port.pool.in_use == 2
        assert array.tolist() == list(numbered(2)[0])
        del array
        gc.collect()
        assert port.pool.in_use == 0


def wrong_numbers() -> None:
    """Sizes, counts and queues are checked before DPDK gets them."""
    for count in (0, -1, 1 << 23, 1 << 40):
        with refused(errno.EINVAL, "buffers"):
            dpdk.Pool(count)
    for size in (0, -1, 63, 65536, 1 << 33):
        with refused(errno.EINVAL, "buffers of"):
            dpdk.Pool(63, size)
    with refused(errno.ENOMEM, "memory_mib"):
        dpdk.Pool(1 << 22, 60_000)
    with ring() as port:
        for most in (0, -1, 65536, 1 << 40):
            with refused(errno.ERANGE):
                port.receive(most)
        with refused(errno.EMSGSIZE):
            port.pool.build([bytes(200_000)])
        with refused(errno.ENOBUFS, "free some"):
            port.pool.build([bytes(60)] * 2000)
        for queue in (-1, 1, 1 << 20):
            with refused(errno.ERANGE, "queue"):
                port.receive(queue=queue)
            with refused(errno.ERANGE, "queue"):
                port.send(b"x" * 60, queue=queue)
        for nothing in (b"", "text", 60, None, [1], [b""], [[b"x"]], 1 << 70):
            with refused(errno.EINVAL):
                port.send(nothing)
        with refused(errno.ERANGE):
            port.send([])
        burst = port.pool.build(numbered(2))
        for index in (2, -3, 1 << 40):
            try:
                burst[index]
            except (IndexError, OverflowError):
                pass
            else:
                raise AssertionError(index)
        long = port.pool.build([bytes(5000)])
        with refused(errno.EMSGSIZE, "segments"):
            _ = long[0].data
        held = port.pool.in_use
        for seconds in (-1.0, float("nan")):
            with refused(errno.EINVAL):
                dpdk.sink(port, seconds=seconds)
            with refused(errno.EINVAL, "timeout"):
                port.receive(timeout=seconds)
            with refused(errno.EINVAL, "timeout"):
                port.send(b"x" * 60, timeout=seconds)
        assert port.pool.in_use == held, "what was refused is free again"
        with refused(errno.EINVAL, "no bytes"):
            port.send(b"")


def wrong_types() -> None:
    """Types are checked before a device is created: its name is free afterwards."""
    for device in (5, None, b"net_null0"):
        with pytest.raises(TypeError, match="named by text"):
            dpdk.Port(device)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a dpdk\.Pool, not int"):
        dpdk.Port("net_null0", pool=5)  # type: ignore[arg-type]
    for wrong in ({"mtu": "x"}, {"promiscuous": "x"}):
        with pytest.raises(TypeError) as kept:
            dpdk.Port("net_null0", **wrong)  # type: ignore[arg-type]
        assert kept.tb is not None, "which holds what __init__ had"
        dpdk.Port("net_null0").close()


def wrong_devices() -> None:
    """Each error names the device; afterwards valid ones open."""
    for device in ("nosuch", "net_memif9,role=frog", "0000:ff:1f.7",
                   "net_pcap0,rx_pcap=/nonexistent/x.pcap"):  # fmt: skip
        with refused(errno.ENODEV, device.split(",")[0]):
            dpdk.Port(device)
    for device in ("", ";mtu=1500", ",", "net_null0;mtu=7", "net_null0;frog=1", "n" * 500, "a\0b"):
        with refused(errno.EINVAL):
            dpdk.Port(device)
    with refused(errno.EINVAL, "net_null0", "queues"):
        dpdk.Port("net_null0", rx_queues=60_000)
    with refused(errno.EINVAL, "descriptors"):
        dpdk.Port("net_null0", descriptors=1 << 30)
    with ring() as port, refused(errno.EBUSY, "net_ring0", "in use"):
        dpdk.Port("net_ring0")
    with ring() as port:
        assert port.send(b"x" * 60) == 1


def pools_in_use_stay() -> None:
    """A pool can't be closed under a port or a burst."""
    pool = dpdk.Pool(511)
    port = dpdk.Port("net_ring0", pool=pool)
    with refused(errno.EBUSY, "1 ports"):
        pool.close()
    burst = pool.build(numbered(5))
    port.close()
    with refused(errno.EBUSY, "5 buffers"):
        pool.close()
    burst.free()
    pool.close()
    pool.close()
    with refused(errno.EBADF, "closed"):
        pool.build([bytes(60)])
    with refused(errno.EBADF, "closed"):
        dpdk.Port("net_ring0", pool=pool)


def bursts_outlive_their_port() -> None:
    """A burst stays valid after its port and pool are closed."""
    port = dpdk.Port("net_ring0")
    port.send(numbered(4))
    got = port.receive(timeout=5)
    port.close()
    del port
    gc.collect()
    assert [bytes(each) for each in got] == numbered(4)
    got.free()


def threads_take_turns() -> None:
    """Threads that use one port and one pool get EBADF when another thread closes the port."""
    with dpdk.Port("net_ring0", pool=dpdk.Pool(4095)) as port:
        kept = port.pool.build(numbered(16))
        ended: list[int | None] = []

        def once(kind: int) -> None:
            if kind == 0:
                port.send(numbered(8), timeout=0)
            elif kind == 1:
                with port.receive() as got:
                    for each in got:
                        bytes(each)
            elif kind == 2:
                dpdk.generate(port, kept, packets=16, seconds=0.01)
            else:
                port.stats()

        def work(kind: int) -> None:
            error = errno.ENOBUFS
            while error == errno.ENOBUFS:
                try:
                    once(kind)
                except dpdk.DpdkError as caught:
                    error = caught.errno
            ended.append(error)

        threads = [threading.Thread(target=work, args=(each % 4,)) for each in range(8)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 30
        while port.stats()["rx_packets"] < 2000 and time.monotonic() < deadline:
            time.sleep(0.001)
        port.close()
        for thread in threads:
            thread.join()
        assert ended == [errno.EBADF] * 8


def a_forked_child_is_told() -> None:
    """Every call fails in a forked child, and the child frees nothing of the parent's."""
    with ring() as port:
        burst = port.pool.build(numbered(8))

        def child() -> None:
            assert not dpdk.running()
            with refused(errno.ECHILD, "forked"):
                port.stats()
            with refused(errno.ECHILD, "forked"):
                port.receive()
            with refused(errno.ECHILD, "forked"):
                dpdk.Pool(63)
            with refused(errno.EBADF, "forked"):
                bytes(burst[0])
            port.close()
            burst.free()

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
        assert process.exitcode == 0
        assert port.pool.in_use == 8
        assert port.send(burst) == 8


if __name__ == "__main__":
    dpdk.start(huge_pages="never", memory_mib=MEMORY_MIB)
    globals()[sys.argv[1]]()
