# SPDX-License-Identifier: Apache-2.0
"""Checks of the C stack (harp_host_check). The plugin explains its refusals with the same words.
They are listed here for the table of checks.
"""

from harp.doctor.finding import CHECKS, Check, Scope

_LIST: tuple[tuple[str, Scope, str], ...] = (
    ("kernel", "host", "The kernel's version: XDP links need 5.9, jumbo frames 6.6."),
    ("privilege", "host", "Capabilities of this process: without them harpd must lease queues."),
    ("memlock", "host", "RLIMIT_MEMLOCK: packet memory is registered with the kernel."),
    ("huge-pages", "host", "Free 2 MiB pages: fewer TLB misses, faster start."),
    ("ports-used", "host", "Kernel sockets within HARP's ports: HARP uses other ports."),
    ("ports-reserved", "host", "ip_local_reserved_ports, ip_local_port_range: port conflicts."),
    ("interface", "interface", "Whether it exists, and is not loopback: HARP needs an interface."),
    ("link", "interface", "Up, with carrier: no packets without."),
    ("driver", "interface", "The driver's name: decides the XDP mode."),
    ("xdp-mode", "interface", "Native or generic XDP: generic mode keeps the kernel's offloads."),
    ("queue", "interface", "Receive queues, and the one asked for: packets on other queues."),
    ("mtu", "interface", "The MTU, and frames for one packet: the size of packets."),
    ("ipv4", "interface", "An IPv4 address: peers connect to it."),
    ("ipv6", "interface", "An IPv6 address, its state and lifetime: peers connect to it."),
    ("addresses", "interface", "Whether the kernel lists them: a problem only if it does not."),
    ("xdp-program", "interface", "Other XDP programs: one program at a time."),
    ("default-route", "interface", "Whether it uses this one: such a NIC is used if named."),
)
HOST_NAMES = {name for name, scope, _ in _LIST if scope == "host"}
CHECKS.extend(Check(name, scope, description, None) for name, scope, description in _LIST)
