# SPDX-License-Identifier: Apache-2.0
"""Types of the compiled module _host."""

import enum
from collections.abc import Iterable
from typing import Any, NamedTuple

SOCKET: str
MESSAGE_MAX: int
DEVICES_MAX: int
QUEUE_ANY: int
FDS: int
FDS_MAX: int
ACCEPTS_BESIDE: int
CORE_NONE: int
DEVICE_DEFAULT_ROUTE: int
DEVICE_UP: int
DEVICE_ONE_QUEUE: int
DEVICE_DPDK: int
DEVICE_BESIDE: int
DEVICE_COPIED: int
PORT_PAGES_MAX: int
TCP_AND_UDP: int

class Kind(enum.IntEnum):
    HELLO = ...
    WELCOME = ...
    LEASE = ...
    LEASED = ...
    REFUSED = ...
    RELEASE = ...
    DONE = ...
    QUERY = ...
    ANSWER = ...
    PORT = ...

class Device(NamedTuple):
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
    kind: int
    queues: int
    key: bytes
    table: tuple[int, ...]

class Queue(NamedTuple):
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
    tx_fd: int

class Leased(NamedTuple):
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
    core: int
    rss: Rss
    side_ifindex: int = 0

class Port(NamedTuple):
    lease_id: int
    page_count: int
    page_bytes: int
    core: int
    spec: str

class Message(NamedTuple):
    kind: Kind
    serial: int
    fields: dict[str, Any]

def pack_hello(serial: int, client: str) -> bytes: ...
def pack_lease(
    serial: int,
    ifname: str,
    *,
    queue: int = ...,
    frame_count: int = 0,
    copy_mode: int = 0,
    queues: int = 0,
    label: str = "",
    accepts: int = ...,
) -> bytes: ...
def pack_release(serial: int, lease_id: int) -> bytes: ...
def pack_query(serial: int, document: bytes) -> bytes: ...
def pack_welcome(serial: int, daemon: str, devices: Iterable[Device], settings: str) -> bytes: ...
def pack_leased(serial: int, lease: Leased) -> bytes: ...
def pack_port(serial: int, port: Port) -> bytes: ...
def pack_refused(serial: int, error: int, why: str) -> bytes: ...
def pack_done(serial: int) -> bytes: ...
def pack_answer(serial: int) -> bytes: ...
def unpack(raw: bytes) -> Message: ...
def queue_make(
    ifname: str,
    queue: int,
    *,
    frame_count: int = 0,
    frame_size: int = 0,
    ring_size: int = 0,
    copy_mode: int = 0,
    huge_pages: int = 0,
    bind_retry_ms: int = 0,
    receive_ifindex: int = 0,
    receive_netns_fd: int = -1,
) -> Queue: ...
def page_create(flows: int) -> tuple[int, int]: ...
def rss_read(ifname: str) -> Rss: ...
def rss_parse(text: str, queues: int) -> Rss: ...
def port_take_check(text: str) -> None: ...
def has_default_route(ifname: str) -> bool: ...
def verdict_names() -> dict[str, str]: ...
def load_library(path: str) -> None: ...
def attached_id(ifindex: int) -> int: ...
def unpin(directory: str) -> bool: ...

class Steering:
    ifname: str
    why: str
    @staticmethod
    def attach(ifname: str, mode: int = 0, beside: bool = False) -> Steering: ...
    @staticmethod
    def adopt(directory: str, ifname: str) -> Steering: ...
    @property
    def native(self) -> bool: ...
    @property
    def side(self) -> int: ...
    def receive(self) -> tuple[int, int]: ...
    def look(self) -> tuple[str, bool]: ...
    def pin(self, directory: str) -> None: ...
    def replace(self) -> None: ...
    def xsk_set(self, queue: int, fd: int) -> None: ...
    def ports_set(self, first: int, last: int, home_queue: int, ours: bool) -> None: ...
    def address_set(self, address: bytes, ours: bool) -> None: ...
    def sources_set(self, sources: Iterable[tuple[bytes, int]]) -> None: ...
    def verdicts(self) -> list[int]: ...
    def arrivals(self, count: int) -> list[tuple[int, int, int]]: ...
    def fds(self) -> list[int]: ...
    def close(self) -> None: ...
