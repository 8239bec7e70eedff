# SPDX-License-Identifier: Apache-2.0
"""Use of harp.dpdk: `bindings_scenes.py SCENE`, each scene in its own process, because a process
can start DPDK only once. test_bindings.py runs them; a failing scene raises."""

import errno
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from harp import dpdk

MEMORY_MIB = 64


@contextmanager
def refused(error: int, *words: str) -> Any:
    """A DpdkError of this kind that says these words."""
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
    """A port whose packets come back to it."""
    return dpdk.Port("net_ring0", pool=dpdk.Pool(1023))


def kernels(ifname: str) -> Any:
    """An interface as the kernel sees it."""
    words = ["ip", "-j", "link", "show", ifname]
    return json.loads(subprocess.run(words, capture_output=True, check=True).stdout)[0]


# --------------------------------------------------------------------------------------------------
# What it is for.
#
def start_is_once_and_stays() -> None:
    """A second start finds it running; one that contradicts is refused."""
    assert dpdk.running()
    dpdk.start()
    with refused(errno.EALREADY):
        dpdk.start(args="--no-such-thing")
    assert dpdk.version().startswith("DPDK ")


def bytes_come_back() -> None:
    """Packets of one and of several segments, whole and in order."""
    with ring() as port:
        given = [*numbered(20), os.urandom(5000), os.urandom(2048), os.urandom(2049)]
        assert port.send(given) == len(given)
        with port.receive(64, timeout=5) as got:
            assert [bytes(packet) for packet in got] == given
            assert got.lengths.tolist() == [len(each) for each in given]
            assert [len(packet.segments) for packet in got][-3:] == [3, 1, 2]
            assert bytes(got[-1]) == given[-1]
        assert port.pool.in_use == 0


def views_are_the_packet() -> None:
    """What is written through a view, or numpy, is what is sent: nothing is copied."""
    with ring() as port:
        burst = port.pool.allocate(2, 100)
        burst[0].data[:] = b"x" * 100
        array = burst[1].array
        array[:97] = np.arange(97)
        array[97:] = list(b"abc")
        del array
        assert port.send(burst) == 2
        assert len(burst) == 0
        got = port.receive(timeout=5)
        assert bytes(got[0].data) == b"x" * 100
        assert bytes(got[1]) == bytes(range(97)) + b"abc"
        assert got[1].array.sum() == sum(range(97)) + sum(b"abc")
        got.free()


def a_full_ring_takes_no_more() -> None:
    """send() says how many went; the others stay the burst's, or go home."""
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
    """info, link, MAC, MTU, promiscuous mode, counters."""
    with dpdk.Port("net_tap0,iface=harpcffi0;mtu=1400;queues=2;name=tap") as port:
        info = port.info
        assert (info.driver, info.bus, info.mtu_bytes) == ("net_tap", "vdev", 1400)
        assert (info.rx_queues, info.tx_queues, info.numa_node) == (2, 2, -1)
        assert info.started
        assert info.driver_copies
        assert "MULTI_SEGS" in info.tx_offloads
        assert kernels("harpcffi0")["mtu"] == 1400
        port.mtu = 1500
        assert port.mtu == 1500
        port.mac = "02:00:00:00:00:07"
        assert port.mac == "02:00:00:00:00:07"
        assert kernels("harpcffi0")["address"] == port.mac
        port.promiscuous = False
        assert not port.promiscuous
        port.promiscuous = True
        assert port.promiscuous
        assert port.link.up
        for bad in ("", "02:00", "zz:00:00:00:00:00"):
            with refused(errno.EINVAL, "MAC"):
                port.mac = bad
        with refused(errno.EINVAL, "MTU"):
            port.mtu = 1 << 20


def counters_count() -> None:
    """Basic ones and the driver's, and their reset."""
    with ring() as port:
        port.send(numbered(7))
        port.receive(timeout=5).free()
        assert port.stats()["tx_packets"] == port.stats()["rx_packets"] == 7
        assert port.xstats()["rx_good_packets"] == 7
        assert "rx_missed_errors" in port.xstats()
        port.reset_stats()
        assert not any(port.stats().values())


def stopped_ports_go_on() -> None:
    """stop and start; a device that was closed can be opened again."""
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


if __name__ == "__main__":
    dpdk.start(huge_pages="never", memory_mib=MEMORY_MIB)
    globals()[sys.argv[1]]()
