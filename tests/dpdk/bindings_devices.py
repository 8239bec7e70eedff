# SPDX-License-Identifier: Apache-2.0
"""harp.dpdk on devices with a peer: `bindings_devices.py SCENE FOLDER`, each scene in its own
process. test_bindings.py runs them."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from bindings_scenes import MEMORY_MIB, refused
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.utils import rdpcap, wrpcap

import harp
from harp import dpdk
from harp.dpdk.supersocket import DpdkSocket

US, THEM = "02:00:00:00:00:01", "02:00:00:00:00:02"
WAIT_S = 60


def packets(count: int) -> list[Ether]:
    """UDP, each of another length."""
    return [
        Ether(src=US, dst=THEM) / IP(src="10.0.0.1", dst="10.0.0.2") / UDP() / os.urandom(10 * each)
        for each in range(count)
    ]


def wait_for_link(port: dpdk.Port) -> None:
    """Until the peer is there."""
    deadline = time.monotonic() + WAIT_S
    while not port.link.up:
        assert time.monotonic() < deadline, "no link"
        time.sleep(0.005)


def a_pcap_is_read(folder: Path) -> None:
    """What scapy wrote comes out of the port."""
    given = packets(50)
    wrpcap(str(folder / "in.pcap"), given)
    with dpdk.Port(f"net_pcap0,rx_pcap={folder}/in.pcap") as port:
        got: list[bytes] = []
        while burst := port.receive():
            got += [bytes(each) for each in burst]
            burst.free()
        assert got == [bytes(each) for each in given]
        assert port.stats()["rx_packets"] == 50


def a_pcap_is_written(folder: Path) -> None:
    """What is sent, scapy reads."""
    given = packets(50)
    with dpdk.Port(f"net_pcap0,tx_pcap={folder}/out.pcap") as port:
        assert port.send(given) == 50
        with DpdkSocket(port) as sock:
            assert sock.send(given[0]) == len(given[0])
    written = [bytes(each) for each in rdpcap(str(folder / "out.pcap"))]
    assert written == [bytes(each) for each in [*given, given[0]]]


def memif(folder: Path, role: str, more: str = "") -> str:
    """One end."""
    return f"net_memif0,role={role},socket={folder}/memif.sock{more}"


def memif_peers_differ(folder: Path) -> None:
    """The peer's buffers are larger than ours: its packets take several, nothing else is written
    to."""
    pools = dpdk.Pool(1023), dpdk.Pool(511, 16384)
    server = dpdk.Port(memif(folder, "server"), pool=pools[0])
    device = memif(folder, "client").replace("net_memif0", "net_memif1")
    client = dpdk.Port(device, mtu=9000, pool=pools[1])
    with server, client:
        wait_for_link(client)
        kept = pools[0].build([b"k" * 2048] * 256)
        for _ in range(64):
            given = os.urandom(9014)
            assert client.send(given) == 1
            with server.receive(1, timeout=WAIT_S) as burst:
                assert bytes(burst[0]) == given
                assert len(burst[0].segments) == 5
        assert {bytes(each) for each in kept} == {b"k" * 2048}
        kept.free()


def a_memif_peer_dies(folder: Path) -> None:
    """Killed under traffic in both directions, again and again: the port goes on."""
    with dpdk.Port(memif(folder, "server"), pool=dpdk.Pool(2047)) as port:
        with port.pool.build([b"\xff" * 12 + bytes(48)] * 64) as burst:
            for _ in range(5):
                words = [sys.executable, __file__, "memif_flood", str(folder)]
                with subprocess.Popen(words, stdout=subprocess.PIPE) as peer:
                    assert peer.stdout is not None
                    wait_for_link(port)
                    stop = threading.Event()
                    loops = [
                        threading.Thread(
                            target=dpdk.generate, args=(port, burst), kwargs={"stop": stop}
                        ),
                        threading.Thread(target=dpdk.sink, args=(port,), kwargs={"stop": stop}),
                    ]
                    for loop in loops:
                        loop.start()
                    assert peer.stdout.readline()
                    peer.kill()
                    peer.wait()
                    deadline = time.monotonic() + WAIT_S
                    while port.link.up:
                        assert time.monotonic() < deadline, "the link of a dead peer"
                        time.sleep(0.005)
                    stop.set()
                    for loop in loops:
                        loop.join()


def memif_flood(folder: Path) -> None:
    """Sends and receives until it is killed."""
    with dpdk.Port(memif(folder, "client"), pool=dpdk.Pool(2047)) as port:
        wait_for_link(port)
        dpdk.sink(port, packets=1000)
        print("under traffic", flush=True)
        dpdk.echo(port)


def a_stack_is_beside(folder: Path) -> None:
    """One process, one DPDK: a port of ours; on another one a HARP stack, which answers scapy."""
    with dpdk.Port(memif(folder, "server")) as port, DpdkSocket(port) as sock:
        device = memif(folder, "client").replace("net_memif0", "net_memif1")
        stack = harp.Instance(f"dpdk:{device};ip=10.78.0.1/24", huge_pages="never",
                              dpdk_memory_mib=MEMORY_MIB)  # fmt: skip
        wait_for_link(port)
        me = {"hwsrc": US, "psrc": "10.78.0.2"}
        ask = Ether(src=US, dst="ff:ff:ff:ff:ff:ff") / ARP(op="who-has", pdst="10.78.0.1", **me)
        answer = sock.sr1(ask, timeout=WAIT_S, retry=-3, verbose=0)
        assert answer[ARP].psrc == "10.78.0.1"
        ping = Ether(src=US, dst=answer[ARP].hwsrc) / IP(src="10.78.0.2", dst="10.78.0.1") / ICMP()
        assert sock.sr1(ping / b"harp", timeout=WAIT_S, verbose=0)[ICMP].type == 0
        # What the driver copied is counted, in the stack's statistics.
        assert stack.stats()["nic_driver_copied_bytes"] > 0
        stack.close()
        assert port.send(b"x" * 60) in (0, 1)


def specs_say_mtu_and_queues(folder: Path) -> None:
    """A port's text, as the stack takes it."""
    with dpdk.Port("dpdk:net_null0;mtu=900;queues=3;frames=600;ip=10.0.0.1/24") as port:
        info = port.info
        assert (info.mtu_bytes, info.rx_queues, info.tx_queues) == (900, 3, 3)
        assert port.pool.count == 600
        with port.receive(queue=2) as burst:
            assert len(burst)
        with refused(34):
            port.receive(queue=3)


if __name__ == "__main__":
    dpdk.start(huge_pages="never", memory_mib=MEMORY_MIB)
    globals()[sys.argv[1]](Path(sys.argv[2]))
