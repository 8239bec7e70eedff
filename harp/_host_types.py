# SPDX-License-Identifier: Apache-2.0
"""C structs of a NIC's queues as tuples, for harp._host."""

from typing import NamedTuple


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
