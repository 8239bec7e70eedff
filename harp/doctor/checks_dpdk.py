# SPDX-License-Identifier: Apache-2.0
"""A DPDK port: its driver, link, queues, MTU, offloads and memory, as it reports when opened."""

from typing import Any

from harp.doctor.finding import Answer, cannot, check, costs, good
from harp.doctor.view import PortProbe, PortUse, View

_USEFUL_TX = {"TCP_CKSUM": "checksums", "TCP_TSO": "segmentation (TSO)"}
_VIRTUAL = "vdev"
_LOST = ("err", "drop", "miss", "discard", "nombuf")  # in names of counters of lost packets


@check("dpdk", "opened")
def _dpdk(view: View, spec: Any, probe: PortProbe) -> Answer:
    """Whether HARP was built with DPDK, and which: HARP drives ports with it."""
    if probe.missing:
        return cannot(probe.error, "install libdpdk-dev and build HARP again (make build)")
    return good(str(probe.info["version"])) if probe.info else None


@check("dpdk-memory", "opened")
def _memory(view: View, spec: Any, probe: PortProbe) -> Answer:
    """Free huge pages, and whether frames fit into the memory of a process (dpdk_memory_mib):
    packets are in huge pages; small pages cost the NIC address translations.
    """
    if probe.missing:
        return None
    wanted = int(str(view.config["HARP_DPDK_MEMORY_MIB"]))
    asked = str(view.config["HARP_DPDK_HUGE_PAGES"])
    frames = spec.frame_count or int(str(view.config["HARP_FRAMES"]))
    # A power of two that includes the headers.
    frame_bytes = 1 << max(11, (spec.mtu_bytes + 469).bit_length())
    needed = max(spec.queues, 1) * frames * frame_bytes >> 20
    if needed > wanted:
        return cannot(
            f"{needed} MiB of frames are asked for ({max(spec.queues, 1)} queues of {frames}), "
            f"and a process's ports have {wanted} MiB",
            "a larger dpdk_memory_mib, or fewer frames",
        )
    folder = view.host.sys / "kernel/mm/hugepages"
    free = 0
    for name in view.host.names(folder):
        kib = name.removeprefix("hugepages-").removesuffix("kB")
        pages = view.host.number(folder / name / "free_hugepages") or 0
        free += int(kib) * pages // 1024 if kib.isdecimal() else 0
    text = f"{free} MiB of huge pages are free; a process's ports take {wanted} MiB"
    if asked == "never":
        return good("no huge pages, as harp.toml has it")
    if free >= wanted:
        return good(text)
    remedy = f"sysctl vm.nr_hugepages={-(-wanted // 2)}, at boot at best"
    if asked == "require":
        return cannot(f"{text}, and dpdk_huge_pages requires them", remedy)
    return costs(f"{text}: it would use ordinary pages", remedy)


@check("dpdk-device", "opened")
def _device(view: View, spec: Any, probe: PortProbe) -> Answer:
    """Whether the port can be opened, and by which driver: DPDK must find the device and have it
    for itself.
    """
    if probe.missing:
        return None
    if probe.error:
        return cannot(
            probe.error, "end the process that has it, mend its text, or see docs/dpdk.md: binding"
        )
    info = probe.info
    where = "a virtual device" if info["bus"] == _VIRTUAL else f"on {info['bus']}"
    node = f", NUMA node {info['numa_node']}" if info["numa_node"] >= 0 else ""
    return good(f"{info['driver']}, {where}{node}, {info['mac']}")


@check("dpdk-link", "working")
def _link(view: View, spec: Any, probe: PortProbe) -> Answer:
    """The link of a NIC (not of a virtual device, which would contact its peer): no packets
    without.
    """
    if not probe.link:
        return None
    if not probe.link["up"]:
        return cannot("down", "put the cable in, or ask the switch's side")
    speed = probe.link["speed_mbps"]
    return good(f"up, {speed} Mbit/s" if speed else "up, of unknown speed")


@check("dpdk-mtu", "working")
def _mtu(view: View, spec: Any, probe: PortProbe) -> Answer:
    """The requested MTU, and the device's limit: all hosts and switches must agree."""
    info = probe.info
    wanted = spec.mtu_bytes or info["mtu_bytes"]
    if wanted > info["mtu_bytes_max"]:
        # memif reports 1500 and carries what its buffers hold.
        if info["driver"] == "net_memif":
            return good(f"{wanted}, in packets of several buffers")
        return cannot(
            f"{wanted} is asked for, and the device takes {info['mtu_bytes_max']}",
            "a smaller mtu= in its text",
        )
    return good(f"{wanted}, of at most {info['mtu_bytes_max']}")


@check("dpdk-queues", "working")
def _queues(view: View, spec: Any, probe: PortProbe) -> Answer:
    """The requested queues, the device's queues, and its hash: each instance needs a queue, and
    must know which flows reach it.
    """
    info = probe.info
    most = min(info["rx_queues_max"], info["tx_queues_max"])
    if spec.queues > most:
        return cannot(f"{spec.queues} are asked for, and the device has {most}", f"queues={most}")
    rss = f"; its hash has {info['rss_table']} entries" if info["rss_table"] else "; it has no hash"
    if spec.queues > 1 and not info["rss_table"] and info["bus"] != _VIRTUAL:
        return costs(
            f"{spec.queues} of {most}{rss}: packets may all come to one queue",
            "queues=1, or a card with RSS",
        )
    return good(f"{spec.queues} of {most}{rss}")


@check("dpdk-offloads", "working")
def _offloads(view: View, spec: Any, probe: PortProbe) -> Answer:
    """Checksums and segmentation, and whether the driver copies packets: the NIC's work is saved on
    the processor.
    """
    has = [text for name, text in _USEFUL_TX.items() if name in probe.info["tx_offloads"]]
    text = " and ".join(has) or "none"
    if probe.info["driver_copies"]:
        return good(f"{text}; the driver copies each packet")
    if not has and probe.info["bus"] != _VIRTUAL:
        return costs("none: the processor sums and cuts", "a card whose driver has TCP_CKSUM")
    return good(text)


@check("dpdk-lease", "used")
def _lease(view: View, spec: Any, use: PortUse) -> Answer:
    """The holder of harpd's lease, and its driver's counters; such a port is not opened: counters
    show where packets were lost.
    """
    if not use.pid:
        return good("harpd has leased it; whose it is, and its counters, are root's to see")
    lost = {
        name: value
        for name, value in use.xstats.items()
        if value and any(word in name for word in _LOST)
    }
    words = ", ".join(f"{name} {value}" for name, value in sorted(lost.items())) or "none of a loss"
    counted = sum(1 for value in use.xstats.values() if value)
    return good(
        f"process {use.pid} ({use.label}) has it; {counted} of {len(use.xstats)} counters of its "
        f"driver are not 0: {words}"
    )
