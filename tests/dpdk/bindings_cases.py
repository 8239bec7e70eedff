# SPDX-License-Identifier: Apache-2.0
"""Use and misuse of harp.dpdk. `bindings_cases.py CASE` runs one case, which raises if it fails.

test_bindings.py runs each case in its own process, because a process can start DPDK only once.
"""

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
def dpdk_error(error: int, *texts: str) -> Iterator[None]:
    """Expect a DpdkError with this errno and these texts, in one line."""
    with pytest.raises(dpdk.DpdkError) as caught:
        yield
    message = str(caught.value)
    assert caught.value.errno == error, (errno.errorcode.get(caught.value.errno), message)
    assert all(text in message for text in texts), (texts, message)
    assert "\n" not in message


def numbered(count: int, size: int = 60) -> list[bytes]:
    """Packets with different bytes."""
    return [index.to_bytes(2, "big") * (size // 2) for index in range(count)]


def ring() -> dpdk.Port:
    """A port that receives what it sends."""
    return dpdk.Port("net_ring0", pool=dpdk.Pool(1023))


def kernel_link(ifname: str) -> Any:
    """The kernel's properties of an interface."""
    command = ["ip", "-j", "link", "show", ifname]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)[0]


# --------------------------------------------------------------------------------------------------
# Use.
#
def dpdk_starts_once() -> None:
    """A second start succeeds; one with other arguments is an error."""
    dpdk.start()
    with dpdk_error(errno.EALREADY):
        dpdk.start(args="--no-such-thing")


def specs_set_mtu_and_queues() -> None:
    """A port accepts the same text as a stack."""
    with dpdk.Port("dpdk:net_null0;mtu=900;queues=3;frames=600;ip=10.0.0.1/24") as port:
        info = port.info
        assert (info.mtu_bytes, info.rx_queues, port.pool.count) == (900, 3, 600)
        with port.receive(queue=2) as burst:
            assert len(burst)


def packets_arrive_unchanged() -> None:
    """Packets of one and of several segments arrive whole and in order."""
    with ring() as port:
        packets = [*numbered(20), os.urandom(5000), os.urandom(2048), os.urandom(2049)]
        assert port.send(packets) == len(packets)
        with port.receive(64, timeout=5) as burst:
            assert [bytes(packet) for packet in burst] == packets
            assert [len(packet.segments) for packet in burst][-3:] == [3, 1, 2]
            assert bytes(burst[-1]) == packets[-1]
        assert port.pool.in_use == 0


def views_share_the_packet_memory() -> None:
    """A memoryview or an array of a packet copies nothing."""
    with ring() as port:
        burst = port.pool.build([bytes(100)] * 2)
        burst[0].data[:] = b"x" * 100
        array = np.frombuffer(burst[1].data, np.uint8)
        array[:97] = np.arange(97)
        array[97:] = list(b"abc")
        del array
        assert port.send(burst) == 2
        assert len(burst) == 0
        received = port.receive(timeout=5)
        assert bytes(received[0].data) == b"x" * 100
        assert bytes(received[1]) == bytes(range(97)) + b"abc"
        received.free()


def a_full_ring_accepts_a_part() -> None:
    """send() returns the number of sent packets. The others stay in the burst or the pool."""
    with dpdk.Port("net_ring0", pool=dpdk.Pool(4095)) as port:
        burst = port.pool.build(numbered(2000))
        sent = port.send(burst, timeout=0)
        assert 0 < sent < 2000
        assert len(burst) == 2000 - sent
        assert bytes(burst[0]) == numbered(2000)[sent]
        assert port.send(b"z" * 60, timeout=0) == 0
        assert port.pool.in_use == 2000
        burst.free()
        received = 0
        while count := len(burst := port.receive(512)):
            received += count
            burst.free()
        assert (received, port.pool.in_use) == (sent, 0)


def ports_report_their_properties() -> None:
    """Driver, queues, MTU, MAC address, promiscuous mode, link."""
    with dpdk.Port("net_tap0,iface=harpcffi0;mtu=1400;queues=2;name=tap") as port:
        info = port.info
        assert (info.driver, info.bus, info.mtu_bytes) == ("net_tap", "vdev", 1400)
        assert (info.rx_queues, info.tx_queues, info.numa_node) == (2, 2, -1)
        assert info.started
        assert info.driver_copies
        assert "MULTI_SEGS" in info.tx_offloads
        assert kernel_link("harpcffi0")["mtu"] == 1400
        assert kernel_link("harpcffi0")["address"] == info.mac
        assert info.promiscuous
        assert port.link.up


def packets_are_counted() -> None:
    """By the basic counters and the driver's."""
    with ring() as port:
        port.send(numbered(7))
        port.receive(timeout=5).free()
        assert port.stats()["tx_packets"] == port.stats()["rx_packets"] == 7
        assert port.xstats()["rx_good_packets"] == 7
        assert "rx_missed_errors" in port.xstats()


def ports_can_restart() -> None:
    """A stopped port starts again; a closed device can be opened again."""
    with ring() as port:
        port.stop()
        port.stop()
        with dpdk_error(errno.EBADF, "stopped"):
            port.receive()
        with dpdk_error(errno.EBADF, "stopped"):
            port.send(b"a" * 60)
        port.start()
        assert port.send(b"a" * 60) == 1
    for _ in range(5):
        with ring() as port:
            assert port.send(numbered(3)) == 3


def a_stack_runs_in_the_same_process() -> None:
    """A stack on the other end of a memif answers scapy."""
    mac = "02:00:00:00:00:01"
    with tempfile.TemporaryDirectory() as folder:
        wire = f"socket={folder}/memif.sock"
        with dpdk.Port(f"net_memif0,role=server,{wire}") as port, DpdkSocket(port) as sock:
            stack = harp.Instance(f"dpdk:net_memif1,role=client,{wire};ip=10.78.0.1/24",
                                  huge_pages="never", dpdk_memory_mib=MEMORY_MIB)  # fmt: skip
            deadline = time.monotonic() + WAIT_S
            while not port.link.up:
                assert time.monotonic() < deadline, "no link"
                time.sleep(0.005)
            arp = ARP(op=1, hwsrc=mac, psrc="10.78.0.2", pdst="10.78.0.1")
            request = Ether(src=mac, dst="ff:ff:ff:ff:ff:ff") / arp
            answer = sock.sr1(request, timeout=WAIT_S, retry=-3, verbose=0)
            assert answer[ARP].psrc == "10.78.0.1"
            ip = IP(src="10.78.0.2", dst="10.78.0.1")
            ping = Ether(src=mac, dst=answer[ARP].hwsrc) / ip / ICMP() / b"harp"
            assert sock.sr1(ping, timeout=WAIT_S, verbose=0)[ICMP].type == 0
            # The stack counts the bytes that the driver copied.
            assert stack.stats()["nic_driver_copied_bytes"] > 0
            stack.close()
            assert port.send(b"x" * 60) in (0, 1)


# --------------------------------------------------------------------------------------------------
# Misuse.
#
def use_after_free_is_an_error() -> None:
    """Packets, bursts and ports raise an error after they are freed or closed."""
    port = ring()
    port.send(numbered(3))
    burst = port.receive(timeout=5)
    packet, view = burst[0], burst[1].data
    burst.free()
    burst.free()
    for call in (lambda: bytes(packet), lambda: packet.data, lambda: len(packet), lambda: burst[0]):
        with dpdk_error(errno.EBADF, "after the end"):
            call()
    with dpdk_error(errno.EBADF):
        port.send(burst)
    with pytest.raises(ValueError, match="released"):
        view[0]
    second = port.pool.build(numbered(2))
    sent = second[0]
    port.send(second)
    with dpdk_error(errno.EBADF, "sent"):
        bytes(sent)
    pool = port.pool
    port.close()
    port.close()
    for call in (port.receive, port.start, port.stop, port.stats, port.xstats, lambda: port.info,
                 lambda: port.send(b"x" * 60)):  # fmt: skip
        with dpdk_error(errno.EBADF, "net_ring0", "closed"):
            call()
    second.free()
    # net_ring keeps the packets in its ring, so the pool is in use.
    with dpdk_error(errno.EBUSY, "2 buffers"):
        pool.close()


def exported_memory_keeps_the_packet() -> None:
    """While a slice or an array refers to a packet, free() and send() are errors."""
    with ring() as port:
        burst = port.pool.build(numbered(2))
        view = burst[1].data[10:20]
        with dpdk_error(errno.EBUSY, "in use"):
            burst.free()
        with dpdk_error(errno.EBUSY, "in use"):
            port.send(burst)
        assert bytes(view) == numbered(2)[1][10:20]
        del view
        array = np.frombuffer(burst[0].data, np.uint8)
        with dpdk_error(errno.EBUSY, "in use"):
            burst.free()
        # The burst is collected at once, its packets only after the array.
        burst_ref = weakref.ref(burst)
        del burst
        gc.collect()
        assert burst_ref() is None
        assert port.pool.in_use == 2
        assert array.tolist() == list(numbered(2)[0])
        del array
        gc.collect()
        assert port.pool.in_use == 0


def invalid_numbers_are_refused() -> None:
    """Sizes, counts and queues are checked before DPDK gets them."""
    for count in (0, -1, 1 << 23, 1 << 40):
        with dpdk_error(errno.EINVAL, "buffers"):
            dpdk.Pool(count)
    for size in (0, -1, 63, 65536, 1 << 33):
        with dpdk_error(errno.EINVAL, "buffers of"):
            dpdk.Pool(63, size)
    with dpdk_error(errno.ENOMEM, "memory_mib"):
        dpdk.Pool(1 << 22, 60_000)
    with ring() as port:
        for count in (0, -1, 65536, 1 << 40):
            with dpdk_error(errno.ERANGE):
                port.receive(count)
        with dpdk_error(errno.EMSGSIZE):
            port.pool.build([bytes(200_000)])
        with dpdk_error(errno.ENOBUFS, "free some"):
            port.pool.build([bytes(60)] * 2000)
        for queue in (-1, 1, 1 << 20):
            with dpdk_error(errno.ERANGE, "queue"):
                port.receive(queue=queue)
            with dpdk_error(errno.ERANGE, "queue"):
                port.send(b"x" * 60, queue=queue)
        for data in (b"", "text", 60, None, [1], [b""], [[b"x"]], 1 << 70):
            with dpdk_error(errno.EINVAL):
                port.send(data)
        with dpdk_error(errno.ERANGE):
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
        with dpdk_error(errno.EMSGSIZE, "segments"):
            _ = long[0].data
        in_use = port.pool.in_use
        for seconds in (-1.0, float("nan")):
            with dpdk_error(errno.EINVAL):
                dpdk.sink(port, seconds=seconds)
            with dpdk_error(errno.EINVAL, "timeout"):
                port.receive(timeout=seconds)
            with dpdk_error(errno.EINVAL, "timeout"):
                port.send(b"x" * 60, timeout=seconds)
        assert port.pool.in_use == in_use, "packets that were not sent are free"
        with dpdk_error(errno.EINVAL, "0 bytes"):
            port.send(b"")


def invalid_types_are_refused() -> None:
    """Types are checked before a device is created, so its name stays free."""
    for device in (5, None, b"net_null0"):
        with pytest.raises(TypeError, match="named by text"):
            dpdk.Port(device)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a dpdk\.Pool, not int"):
        dpdk.Port("net_null0", pool=5)  # type: ignore[arg-type]
    for arguments in ({"mtu": "x"}, {"promiscuous": "x"}):
        with pytest.raises(TypeError) as caught:
            dpdk.Port("net_null0", **arguments)  # type: ignore[arg-type]
        assert caught.tb is not None, "the traceback keeps the locals of __init__"
        dpdk.Port("net_null0").close()


def invalid_devices_are_refused() -> None:
    """Each error names the device. Valid devices still open."""
    for device in ("nosuch", "net_memif9,role=frog", "0000:ff:1f.7",
                   "net_pcap0,rx_pcap=/nonexistent/x.pcap"):  # fmt: skip
        with dpdk_error(errno.ENODEV, device.split(",")[0]):
            dpdk.Port(device)
    for device in ("", ";mtu=1500", ",", "net_null0;mtu=7", "net_null0;frog=1", "n" * 500, "a\0b"):
        with dpdk_error(errno.EINVAL):
            dpdk.Port(device)
    with dpdk_error(errno.EINVAL, "net_null0", "queues"):
        dpdk.Port("net_null0", rx_queues=60_000)
    with dpdk_error(errno.EINVAL, "descriptors"):
        dpdk.Port("net_null0", descriptors=1 << 30)
    with ring() as port, dpdk_error(errno.EBUSY, "net_ring0", "in use"):
        dpdk.Port("net_ring0")
    with ring() as port:
        assert port.send(b"x" * 60) == 1


def pools_in_use_cannot_be_closed() -> None:
    """A pool stays open while a port or a burst uses it."""
    pool = dpdk.Pool(511)
    port = dpdk.Port("net_ring0", pool=pool)
    with dpdk_error(errno.EBUSY, "1 ports"):
        pool.close()
    burst = pool.build(numbered(5))
    port.close()
    with dpdk_error(errno.EBUSY, "5 buffers"):
        pool.close()
    burst.free()
    pool.close()
    pool.close()
    with dpdk_error(errno.EBADF, "closed"):
        pool.build([bytes(60)])
    with dpdk_error(errno.EBADF, "closed"):
        dpdk.Port("net_ring0", pool=pool)


def bursts_outlive_their_port() -> None:
    """A burst stays valid after its port and pool are closed."""
    port = dpdk.Port("net_ring0")
    port.send(numbered(4))
    burst = port.receive(timeout=5)
    port.close()
    del port
    gc.collect()
    assert [bytes(packet) for packet in burst] == numbered(4)
    burst.free()


def closing_a_port_ends_its_users() -> None:
    """Threads share a port and its pool until one thread closes the port; then they get EBADF."""
    with dpdk.Port("net_ring0", pool=dpdk.Pool(4095)) as port:
        burst = port.pool.build(numbered(16))
        errors: list[int | None] = []

        def use(kind: int) -> None:
            if kind == 0:
                port.send(numbered(8), timeout=0)
            elif kind == 1:
                with port.receive() as received:
                    for packet in received:
                        bytes(packet)
            elif kind == 2:
                dpdk.generate(port, burst, packets=16, seconds=0.01)
            else:
                port.stats()

        def use_until_closed(kind: int) -> None:
            error = errno.ENOBUFS
            while error == errno.ENOBUFS:
                try:
                    use(kind)
                except dpdk.DpdkError as caught:
                    error = caught.errno
            errors.append(error)

        threads = [threading.Thread(target=use_until_closed, args=(i % 4,)) for i in range(8)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 30
        while port.stats()["rx_packets"] < 2000 and time.monotonic() < deadline:
            time.sleep(0.001)
        port.close()
        for thread in threads:
            thread.join()
        assert errors == [errno.EBADF] * 8


def a_forked_child_cannot_use_dpdk() -> None:
    """Every call fails in a forked child, which frees nothing of the parent."""
    with ring() as port:
        burst = port.pool.build(numbered(8))

        def child() -> None:
            assert not dpdk.running()
            with dpdk_error(errno.ECHILD, "forked"):
                port.stats()
            with dpdk_error(errno.ECHILD, "forked"):
                port.receive()
            with dpdk_error(errno.ECHILD, "forked"):
                dpdk.Pool(63)
            with dpdk_error(errno.EBADF, "forked"):
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
