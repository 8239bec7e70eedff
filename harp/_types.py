# SPDX-License-Identifier: Apache-2.0
"""C structs and events as Python types, for the compiled modules."""

import enum
from typing import NamedTuple


class Event(enum.IntFlag):
    """Events of next_events() (HARP_EVENT_* of harp.h)."""

    CONNECTED = 0x01
    READABLE = 0x02
    WRITABLE = 0x04
    ACKED = 0x08
    EOF = 0x10
    CLOSED = 0x20
    ACCEPT = 0x40


class PortSpec(NamedTuple):
    """struct harp_port_spec: a DPDK port. A number that the specification omits is 0."""

    device: str
    name: str
    addresses: tuple[str, ...]  # "10.9.0.1/24"
    gateways: tuple[str, ...]  # at most one per family
    routes: tuple[str, ...]  # "10.8.0.0/16@10.9.0.254"
    mtu_bytes: int
    vlan_id: int
    queues: int
    frame_count: int
    take_default_route: bool
    text: str  # the canonical specification


class Rss(NamedTuple):
    """struct harp_rss: how a NIC chooses the queue of a packet."""

    kind: int
    queues: int
    key: bytes
    table: tuple[int, ...]


class Queue(NamedTuple):
    """struct harp_queue: a bound AF_XDP socket and its memory. The caller owns the descriptors."""

    xsk_fd: int
    frames_fd: int
    ifindex: int
    queue: int
    frame_size: int
    frame_count: int
    ring_size: int
    mtu_bytes: int
    features: int
    tx_frags_max: int
    zero_copy: bool
    mac: bytes
