# SPDX-License-Identifier: Apache-2.0
"""An open DPDK port: its driver, link, queues, MTU, offloads and memory."""

from typing import Any

from harp.doctor.finding import Answer, check, fail, ok, warn
from harp.doctor.view import PortProbe, View

_USEFUL_TX = {"TCP_CKSUM": "checksums", "TCP_TSO": "segmentation (TSO)"}
_VIRTUAL = "vdev"


@check("dpdk", "opened")
def _dpdk(view: View, spec: Any, probe: PortProbe) -> Answer:
    """Whether HARP was built with DPDK, and which: HARP drives ports with it."""
    if probe.missing:
        return fail(probe.error, "install libdpdk-dev and build HARP again (make build)")
    return ok(str(probe.info["version"])) if probe.info else None


@check("dpdk-memory", "opened")
def _memory(view: View, spec: Any, probe: PortProbe) -> Answer:
    """Free huge pages, and whether frames fit into the memory of a process (dpdk_memory_mib):
    packets are in huge pages; small pages cost the NIC address translations.
    """
    if probe.missing:
        return None
    memory_mib = int(str(view.config["HARP_DPDK_MEMORY_MIB"]))
    huge_pages = str(view.config["HARP_DPDK_HUGE_PAGES"])
    frames = spec.frame_count or int(str(view.config["HARP_FRAMES"]))
    # A power of two that includes the headers.
    frame_bytes = 1 << max(11, (spec.mtu_bytes + 469).bit_length())
    needed_mib = max(spec.queues, 1) * frames * frame_bytes >> 20
    if needed_mib > memory_mib:
        return fail(
            f"{needed_mib} MiB of frames are needed ({max(spec.queues, 1)} queues of {frames}), "
            f"but a process's ports have {memory_mib} MiB",
            "a larger dpdk_memory_mib, or fewer frames",
        )
    folder = view.host.sys / "kernel/mm/hugepages"
    free = 0
    for name in view.host.names(folder):
        kib = name.removeprefix("hugepages-").removesuffix("kB")
        pages = view.host.number(folder / name / "free_hugepages") or 0
        free += int(kib) * pages // 1024 if kib.isdecimal() else 0
    text = f"{free} MiB of huge pages are free; a process's ports take {memory_mib} MiB"
    if huge_pages == "never":
        return ok("no huge pages, by dpdk_huge_pages")
    if free >= memory_mib:
        return ok(text)
    remedy = f"sysctl vm.nr_hugepages={-(-memory_mib // 2)}, preferably at boot"
    if huge_pages == "require":
        return fail(f"{text}, and dpdk_huge_pages requires them", remedy)
    return warn(f"{text}: it would use ordinary pages", remedy)


@check("dpdk-device", "opened")
def _device(view: View, spec: Any, probe: PortProbe) -> Answer:
    """Whether the port can be opened, and by which driver: DPDK must find the device, which no
    other process may use.
    """
    if probe.missing:
        return None
    if probe.error:
        return fail(
            probe.error,
            "end the process that has it, correct its text, or see docs/dpdk.md: binding",
        )
    info = probe.info
    bus = "a virtual device" if info["bus"] == _VIRTUAL else f"on {info['bus']}"
    node = f", NUMA node {info['numa_node']}" if info["numa_node"] >= 0 else ""
    return ok(f"{info['driver']}, {bus}{node}, {info['mac']}")


@check("dpdk-link", "working")
def _link(view: View, spec: Any, probe: PortProbe) -> Answer:
    """The link of a NIC (not of a virtual device, which would contact its peer): no packets without
    it.
    """
    if not probe.link:
        return None
    if not probe.link["up"]:
        return fail("down", "check the cable, and the port of the switch")
    speed = probe.link["speed_mbps"]
    return ok(f"up, {speed} Mbit/s" if speed else "up, of unknown speed")


@check("dpdk-mtu", "working")
def _mtu(view: View, spec: Any, probe: PortProbe) -> Answer:
    """The requested MTU, and the device's limit: all hosts and switches must agree."""
    info = probe.info
    mtu_bytes = spec.mtu_bytes or info["mtu_bytes"]
    if mtu_bytes > info["mtu_bytes_max"]:
        # memif reports 1500, but accepts packets of several buffers.
        if info["driver"] == "net_memif":
            return ok(f"{mtu_bytes}, in packets of several buffers")
        return fail(
            f"{mtu_bytes} is requested, but the device's limit is {info['mtu_bytes_max']}",
            "a smaller mtu= in its text",
        )
    return ok(f"{mtu_bytes}, of at most {info['mtu_bytes_max']}")


@check("dpdk-queues", "working")
def _queues(view: View, spec: Any, probe: PortProbe) -> Answer:
    """The requested queues, the device's queues, and its hash: each instance needs a queue, and
    must know which flows reach it.
    """
    info = probe.info
    most = min(info["rx_queues_max"], info["tx_queues_max"])
    if spec.queues > most:
        return fail(f"{spec.queues} are requested, but the device has {most}", f"queues={most}")
    rss = f"; its hash has {info['rss_table']} entries" if info["rss_table"] else "; it has no hash"
    if spec.queues > 1 and not info["rss_table"] and info["bus"] != _VIRTUAL:
        return warn(
            f"{spec.queues} of {most}{rss}: all packets may come to one queue",
            "queues=1, or a card with RSS",
        )
    return ok(f"{spec.queues} of {most}{rss}")


@check("dpdk-offloads", "working")
def _offloads(view: View, spec: Any, probe: PortProbe) -> Answer:
    """Checksums and segmentation, and whether the driver copies packets: the NIC's work is saved on
    the processor.
    """
    offloads = [text for name, text in _USEFUL_TX.items() if name in probe.info["tx_offloads"]]
    text = " and ".join(offloads) or "none"
    if probe.info["driver_copies"]:
        return ok(f"{text}; the driver copies each packet")
    if not offloads and probe.info["bus"] != _VIRTUAL:
        return warn(
            "none: the processor computes checksums and cuts segments",
            "a card whose driver has TCP_CKSUM",
        )
    return ok(text)


@check("dpdk-lease", "used")
def _lease(view: View, spec: Any) -> Answer:
    """Whether a job has harpd's lease of the port; such a port is not opened: it has one owner."""
    return ok("leased: `harpctl instances` names the job, `harpctl stats --all` its counters")
