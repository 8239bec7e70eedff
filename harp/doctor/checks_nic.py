# SPDX-License-Identifier: Apache-2.0
"""An interface: its kind, its driver's features, and its settings."""

from harp import _host
from harp.doctor.finding import Answer, check, fail, ok, warn
from harp.doctor.view import Link, View
from harp.nicprep import interrupts, ranges
from harp.nicprep.host import affinity_path, local_processors

_BASIC, _ZEROCOPY, _RX_SG = 1, 8, 32
# The largest packet in one page with headroom and the kernel's structure; drivers differ by some
# bytes.
MTU_ONE_BUFFER = 3498
_LATE_US = 64
_RING_SMALL = 1024
# Drivers that need as many spare transmit queues for native XDP as there are queues.
_HALF_OF_QUEUES = ("ena",)


@check("device", "interface")
def _device(view: View, link: Link, _queue: int) -> Answer:
    """Bonds, VLANs, bridges, macvlans, tunnels: an AF_XDP socket receives only on real queues."""
    if link.loopback:
        return None  # the C stack reports it
    if not link.ethernet:
        return fail("carries no Ethernet frames", "name the NIC that leads to the other hosts")
    if link.kind in ("bond", "team"):
        members = ", ".join(link.members) or "none"
        return fail(
            f"a bond: sockets on it receive nothing; members: {members}",
            "use a NIC that is in no bond; HARP_PATH=auto uses kernel lanes here",
        )
    if link.kind == "vlan":
        return fail(f"a VLAN on {link.lower}: sockets on it receive nothing", _use(link))
    if link.kind in ("macvlan", "ipvlan"):
        return warn(
            f"a {link.kind} on {link.lower or 'a device of the host'}: generic XDP; peers on "
            "the same device are reached by kernel lanes",
            _use(link),
        )
    if link.kind == "bridge":
        return warn(
            "a bridge: only generic XDP, after the bridge has handled each packet",
            f"use its port to the network ({', '.join(link.members) or 'none'})",
        )
    if link.master:
        return ok(f"{link.kind or 'a NIC'}, member of {link.master_kind} {link.master}")
    return ok(link.kind or ("a NIC" if view.is_hardware(link) else "a virtual device"))


def _use(link: Link) -> str:
    return f"use {link.lower}" if link.lower else "use the lower device, on the host"


@check("zero-copy", "interface")
def _zero_copy(view: View, link: Link, _queue: int) -> Answer:
    """XDP features of the driver (netdev netlink): without zero-copy the kernel copies each packet
    once.
    """
    features = _features(view, link)
    if features is None:
        return ok("not known before Linux 6.3: HARP tries it")
    if features & _ZEROCOPY:
        return ok("the driver has it")
    if not view.is_hardware(link):
        return ok("copies: a virtual device has no packet memory to share")
    driver = view.host.ethtool.driver(link.name)[0]
    return warn(
        f"{driver} has none in this kernel: packets are copied",
        "a newer kernel or driver, if its makers added it",
    )


@check("native-xdp", "interface")
def _native(view: View, link: Link, _queue: int) -> Answer:
    """Native XDP, and the largest MTU for it: generic XDP runs after the kernel has allocated a
    packet.
    """
    if not view.is_hardware(link):
        return None
    features = _features(view, link)
    if features is None:
        return ok("not known before Linux 6.3: HARP tries it")
    if not features & _BASIC:
        return warn("the driver has none: generic XDP", "a newer kernel or driver")
    if features & _RX_SG or link.mtu_bytes <= MTU_ONE_BUFFER:
        mtu = "any MTU" if features & _RX_SG else f"MTU {MTU_ONE_BUFFER} and below"
        return ok(f"the driver has it, for {mtu}")
    return warn(
        f"the driver supports one buffer per packet, and the MTU is {link.mtu_bytes}: generic XDP",
        f"a driver with multi-buffer XDP; or an MTU of {MTU_ONE_BUFFER} or less, on every host",
    )


@check("harpd-program", "interface")
def _harpd_program(view: View, link: Link, _queue: int) -> Answer:
    """Whether harpd's XDP program is a generic one: with a generic program the kernel copies what
    it receives for itself.
    """
    if not view.is_leased(link) or not view.harpd.devices[link.name].flags & _host.DEVICE_GENERIC:
        return None
    return warn(
        "generic XDP, as harp.toml asks: what the kernel receives for itself is copied once more",
        f'xdp_mode = "auto" in the [[nic]] of {link.name}, unless its jobs need HARP_PATH=xdp',
    )


@check("channels", "interface")
def _channels(view: View, link: Link, _queue: int) -> Answer:
    """The NIC's queues, and their limit: each instance needs one; some drivers need spare ones for
    XDP.
    """
    now = view.ethtool("channels", link)
    if now is None:
        return ok(f"{link.rx_queues} receive, {link.tx_queues} transmit; fixed")
    if not now.get("combined_max"):
        counts = [f"{now.get(name)} {name} of {now.get(f'{name}_max')}" for name in ("rx", "tx")]
        return ok(", ".join(counts))
    most = now["combined_max"]
    driver = view.host.ethtool.driver(link.name)[0]
    if driver in _HALF_OF_QUEUES and now["combined"] > most // 2:
        return warn(
            f"{now['combined']} of {most}: {driver} has native XDP with half of them at most",
            f"ethtool -L {link.name} combined {max(1, most // 2)}",
        )
    return ok(f"{now['combined']} of {most}")


@check("rss", "interface")
def _rss(view: View, link: Link, _queue: int) -> Answer:
    """Whether the NIC reports the rule by which it chooses queues: HARP then computes ports whose
    packets reach the right queue.
    """
    if _queues(view, link) == 1:
        return ok("one queue: nothing to choose")
    rss = view.ethtool("rss", link)
    if rss is None:
        return warn(
            "the NIC does not show its table: HARP finds the right queue by trying",
            f"HARP_RSS, if you know the rule; or ethtool -L {link.name} combined 1",
        )
    return ok(f"a table of {len(rss['table'])} entries over queues {ranges.text(rss['table'])}")


@check("merging", "interface")
def _merging(view: View, link: Link, _queue: int) -> Answer:
    """LRO and hardware GRO: they merge packets before XDP sees them, and many drivers refuse XDP
    with them.
    """
    features = view.ethtool("features", link)
    if features is None:
        return None
    names = {"rx-lro": "lro", "rx-gro-hw": "rx-gro-hw"}
    active = [option for name, option in names.items() if features.get(name)]
    if not active:
        return ok("off")
    changeable = view.host.ethtool.get("changeable", link.name)
    options = [option for name, option in names.items() if option in active and name in changeable]
    if not options:
        text = f"{' and '.join(active)} on, and fixed: generic XDP if native is refused"
        return warn(text, "in a virtual machine, only the hypervisor can turn it off")
    switches = " ".join(f"{option} off" for option in options)
    return warn(f"{' and '.join(active)} on", f"ethtool -K {link.name} {switches}")


@check("vlan-tags", "interface")
def _vlan_tags(view: View, link: Link, _queue: int) -> Answer:
    """Whether the NIC removes VLAN tags (rxvlan) while it has VLANs: an XDP program does not see
    such a tag, so HARP may receive a VLAN's packets.
    """
    # The VLANs of a bond arrive on its members.
    carriers = {link.name, link.master} - {""}
    vlans = sorted(
        vlan.name for vlan in view.links.values() if vlan.kind == "vlan" and vlan.lower in carriers
    )
    if not vlans:
        return ok("no VLAN interface here")
    features = view.ethtool("features", link)
    if features is None:
        return None
    names = ", ".join(vlans)
    if not features.get("rx-vlan-hw-parse"):
        return ok(f"rxvlan is off: the XDP program passes what belongs to {names}")
    return warn(
        f"rxvlan is on and there is {names}: HARP can receive a VLAN's packets for its own "
        "addresses and ports",
        f"ethtool -K {link.name} rxvlan off; or allow_sources of {link.name} in harp.toml",
    )


@check("coalescing", "interface")
def _coalescing(view: View, link: Link, _queue: int) -> Answer:
    """The time that the NIC waits before an interrupt: each wait is part of a message's latency."""
    now = view.ethtool("coalesce", link)
    if now is None:
        return None
    if now.get("adaptive_rx"):
        return warn(
            "adaptive: the wait changes with the traffic, and latency with it",
            f'ethtool -C {link.name} adaptive-rx off rx-usecs 8, or coalesce = "set" in harp.toml',
        )
    wait = now.get("rx_usecs", 0)
    if wait > _LATE_US:
        return warn(f"packets wait up to {wait} us", f"ethtool -C {link.name} rx-usecs 8")
    return ok(f"packets wait {wait} us at most")


@check("rings", "interface")
def _rings(view: View, link: Link, _queue: int) -> Answer:
    """The NIC's ring sizes: a short ring drops packets of a burst."""
    now = view.ethtool("rings", link)
    if now is None:
        return None
    size, most = now.get("rx", 0), now.get("rx_max", 0)
    if size < min(_RING_SMALL, most):
        remedy = f"ethtool -G {link.name} rx {min(_RING_SMALL, most)}"
        return warn(f"{size} received packets of {most}", remedy)
    return ok(f"{size} received packets of {most}")


@check("numa", "interface")
def _numa(view: View, link: Link, _queue: int) -> Answer:
    """The NIC's NUMA node, and whether its processors are usable: else every packet crosses between
    nodes.
    """
    node = view.host.node(link.name)
    if node is None or len(view.host.nodes()) < 2:
        return ok("one node, or the NIC belongs to none")
    near = view.host.numbers(view.host.sys / f"devices/system/node/node{node}/cpulist")
    usable = near & view.host.processors()
    if usable or not near:
        return ok(f"node {node}, processors {ranges.text(usable)}")
    return warn(
        f"the NIC is at node {node} and none of its processors may be used here",
        f"run the job on {ranges.text(near)} (numactl --cpunodebind={node}, docker --cpuset-cpus)",
    )


@check("irq-affinity", "interface")
def _irq_affinity(view: View, link: Link, _queue: int) -> Answer:
    """The processors of the queues' interrupts: distant or shared processors delay packets."""
    irqs = interrupts(view.host, link.name)
    if not irqs:
        return ok("its queues have no interrupts of their own")
    affinities = {
        irq.number: view.host.numbers(affinity_path(view.host, irq.number)) for irq in irqs
    }
    near = local_processors(view.host, link.name)
    remedy = 'irq_affinity = "local" in harp.toml, or /proc/irq/*/smp_affinity_list'
    # Compare with all processors of the node, not only with those that this process may use.
    node = view.host.node(link.name)
    if node is not None:
        folder = view.host.sys / f"devices/system/node/node{node}"
        near = view.host.numbers(folder / "cpulist") or near
        far = [number for number, cpus in affinities.items() if cpus and not cpus & near]
        if far:
            return warn(f"{len(far)} of {len(irqs)} run far from the NIC's node {node}", remedy)
    used = set().union(*affinities.values())
    if len({irq.queue for irq in irqs}) > 1 and len(used) == 1 and all(affinities.values()):
        return warn(f"all {len(irqs)} on processor {ranges.text(used)}", remedy)
    return ok(f"{len(irqs)} on processors {ranges.text(used)}")


@check("queue-busy", "interface")
def _queue_busy(view: View, link: Link, queue: int) -> Answer:
    """Whether the queue has an AF_XDP socket already (Linux 6.14): a queue has one owner."""
    if view.is_leased(link):
        device = view.harpd.devices[link.name]
        if device.flags & _host.DEVICE_ONE_QUEUE:
            return warn(
                f"all of HARP's packets came on one of {device.queues} queues: harpd leases no "
                "other (`harpctl status` says more), and more jobs get kernel lanes",
                f"let the NIC spread TCP: ethtool -x {link.name}, then -X or -L; or give harpd "
                f"only that queue (lease_queues of {link.name} in harp.toml)",
            )
        if device.queues_free:
            return ok(f"harpd has {device.queues_free} of {device.queues} queues to lease")
        return warn(
            f"all {device.queues} queues are leased: more jobs get kernel lanes",
            f"wait for one, or more queues (queues of {link.name} in harp.toml)",
        )
    try:
        busy = view.host.ethtool.xsk_queues(link.name)
    except OSError:
        return None
    if queue in busy:
        return fail(
            f"queue {queue} has an AF_XDP socket of another process",
            "end that process, choose another --queue, or let harpd lease queues",
        )
    return ok(f"queue {queue} is free" + (f"; taken: {ranges.text(busy)}" if busy else ""))


def _features(view: View, link: Link) -> int | None:
    try:
        value = view.host.ethtool.xdp(link.name).get("xdp_features")
    except OSError:
        return None
    return None if value is None else int(value)


def _queues(view: View, link: Link) -> int:
    now = view.ethtool("channels", link) or {}
    return int(now.get("combined", 0)) + int(now.get("rx", 0)) or link.rx_queues
