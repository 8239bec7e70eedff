# SPDX-License-Identifier: Apache-2.0
"""The C structs of harpd's messages and queues as tuples, for harp._host."""

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from harp._host import Kind


class Device(NamedTuple):
    """struct harp_lease_device. Addresses: 16 bytes, or empty."""

    ifname: str
    ifindex: int
    flags: int
    mtu_bytes: int
    speed_mbps: int
    queues: int
    queues_free: int
    numa_node: int
    mac: bytes
    netns: int
    guid: int
    addr_v4: bytes
    addr_v6: bytes
    pci_path: str


class Rss(NamedTuple):
    """struct harp_rss: how a NIC chooses the queue of a packet."""

    kind: int
    queues: int
    key: bytes
    table: tuple[int, ...]


class Queue(NamedTuple):
    """struct harp_queue: a bound AF_XDP socket and its memory; the descriptors are the caller's."""

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


class Leased(NamedTuple):
    """struct harp_lease_leased."""

    lease_id: int
    netns: int
    ifname: str
    ifindex: int
    queue: int
    queue_count: int
    frame_size: int
    frame_count: int
    ring_size: int
    nic_features: int
    tx_frags_max: int
    mtu_bytes: int
    native: bool
    zero_copy: bool
    port_min: int
    port_max: int
    mac: bytes
    page_bytes: int
    rss: Rss


class Port(NamedTuple):
    """struct harp_lease_port and its specification."""

    lease_id: int
    page_count: int
    page_bytes: int
    spec: str


class Message(NamedTuple):
    """One message: its kind, its serial, and the fields of its kind."""

    kind: "Kind"
    serial: int
    fields: dict[str, Any]
