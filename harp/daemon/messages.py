# SPDX-License-Identifier: Apache-2.0
"""The messages of harp_lease.h between jobs and harpd.

Each body is a dataclass whose fields name their C types. ctypes lays them out as the C compiler
does; tests/daemon/test_parts.py compares them with the header. A job's messages are untrusted:
unpack() raises ValueError with the reason.
"""

import ctypes
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

from harp import _host
from harp._host import Kind

T = TypeVar("T")
HEADER = struct.Struct("=IHHII")  # struct harp_lease_header
REST_MAX = _host.MESSAGE_MAX - HEADER.size  # bytes of a message without a body
U8 = Annotated[int, ctypes.c_uint8]
U16 = Annotated[int, ctypes.c_uint16]
U32 = Annotated[int, ctypes.c_uint32]
U64 = Annotated[int, ctypes.c_uint64]
I32 = Annotated[int, ctypes.c_int32]
Text16 = Annotated[str, ctypes.c_char * 16]
Text32 = Annotated[str, ctypes.c_char * 32]
Text64 = Annotated[str, ctypes.c_char * 64]
Text256 = Annotated[str, ctypes.c_char * 256]
Text384 = Annotated[str, ctypes.c_char * 384]
Bytes6 = Annotated[bytes, ctypes.c_uint8 * 6]
Bytes16 = Annotated[bytes, ctypes.c_uint8 * 16]
Bytes64 = Annotated[bytes, ctypes.c_uint8 * 64]
Table512 = Annotated[tuple[int, ...], ctypes.c_uint16 * 512]


@dataclass(frozen=True)
class Hello:
    client: Text32


@dataclass(frozen=True)
class Welcome:
    daemon: Text32
    device_count: U32
    settings_bytes: U32


@dataclass(frozen=True)
class Device:
    """struct harp_lease_device. An address that is all 0: there is none."""

    ifname: Text16
    ifindex: U32
    flags: U32
    mtu_bytes: U32
    speed_mbps: U32
    queues: U32
    queues_free: U32
    numa_node: I32
    mac: Bytes6
    netns: U64
    guid: U64
    addr_v4: Bytes16
    addr_v6: Bytes16
    pci_path: Text256


@dataclass(frozen=True)
class Request:
    ifname: Text16
    queue: U32 = _host.QUEUE_ANY
    frame_count: U32 = 0
    copy_mode: U32 = 0
    queues: U32 = 0
    label: Text64 = ""


@dataclass(frozen=True)
class Leased:
    lease_id: U64
    netns: U64
    ifname: Text16
    ifindex: U32
    queue: U32
    queue_count: U32
    frame_size: U32
    frame_count: U32
    ring_size: U32
    nic_features: U32
    tx_frags_max: U32
    mtu_bytes: U32
    native: U8
    zero_copy: U8
    port_min: U16
    port_max: U16
    mac: Bytes6
    page_bytes: U32
    unused: U32 = field(default=0, kw_only=True)
    rss_kind: U32
    rss_key_bytes: U32
    rss_table_count: U32
    rss_queues: U32 = field(default=0, kw_only=True)
    rss_key: Bytes64
    rss_table: Table512


@dataclass(frozen=True)
class Port:
    lease_id: U64
    page_count: U32
    page_bytes: U32
    unused: U32 = field(default=0, kw_only=True)
    spec_bytes: U32


@dataclass(frozen=True)
class Refused:
    """struct harp_lease_refused. error: a positive errno."""

    error: I32
    why: Text384


@dataclass(frozen=True)
class LeaseId:
    """struct harp_lease_release, harp_lease_watch, and the start of harp_lease_network."""

    lease_id: U64


@dataclass(frozen=True)
class Neighbor:
    """struct harp_lease_neighbor. mac: empty if unknown."""

    addr: Bytes16
    mac: Bytes6
    flags: U8
    reserved: U8 = field(default=0, kw_only=True)


@dataclass(frozen=True)
class Neighbors:
    count: U32
    reserved: U32 = field(default=0, kw_only=True)


@dataclass(frozen=True)
class RouteQuery:
    lease_id: U64
    dst: Bytes16


BODIES: dict[Kind, type[Any]] = {
    Kind.HELLO: Hello,
    Kind.WELCOME: Welcome,
    Kind.LEASE: Request,
    Kind.LEASED: Leased,
    Kind.REFUSED: Refused,
    Kind.RELEASE: LeaseId,
    Kind.PORT: Port,
    Kind.WATCH: LeaseId,
    Kind.NETWORK: LeaseId,
    Kind.NEIGHBORS: Neighbors,
    Kind.ROUTE: RouteQuery,
}

# Records that follow a body: their type, the field with their number, and its limit.
RECORDS: dict[Kind, tuple[type[Any], str, int]] = {
    Kind.WELCOME: (Device, "device_count", _host.DEVICES_MAX),
    Kind.NEIGHBORS: (Neighbor, "count", _host.NEIGHBORS_MAX),
}
# Texts that follow a body, and the field with their size.
TEXTS = {Kind.WELCOME: "settings_bytes", Kind.PORT: "spec_bytes"}


class Message(NamedTuple):
    """A message. body: an object of BODIES, or None; records: of RECORDS; rest: further bytes."""

    kind: Kind
    serial: int
    body: Any
    records: list[Any]
    rest: bytes

    @property
    def text(self) -> str:
        return self.rest.decode("utf-8", "replace")


def _layout(body: type[Any]) -> type[ctypes.Structure]:
    hints = get_type_hints(body, include_extras=True)
    members = [(member.name, hints[member.name].__metadata__[0]) for member in fields(body)]
    return type(body.__name__, (ctypes.Structure,), {"_fields_": members})


# The C structs of bodies and records, without the header.
LAYOUTS = {body: _layout(body) for body in (*BODIES.values(), Device, Neighbor)}


def _native(kind: Any, value: Any) -> Any:
    if isinstance(value, str):  # truncate it after a whole character, before a final NUL
        raw = value.encode("utf-8", "replace")[: ctypes.sizeof(kind) - 1]
        return raw.decode("utf-8", "ignore").encode()
    return kind(*value) if isinstance(value, bytes | tuple) else value


def _raw(body: Any) -> bytes:
    members = LAYOUTS[type(body)]()
    for name, kind, *_ in members._fields_:
        setattr(members, name, _native(kind, getattr(body, name)))
    return bytes(members)


def _value(native: Any) -> Any:
    if isinstance(native, bytes):
        return native.decode("utf-8", "replace")
    if isinstance(native, ctypes.Array):
        return bytes(native) if native._type_ is ctypes.c_uint8 else tuple(native)
    return native


def _read(body: type[T], raw: bytes, offset: int = 0) -> T:
    """Read a body; further fields of a later version are ignored."""
    kind = LAYOUTS[body]
    if len(raw) - offset < ctypes.sizeof(kind):
        raise ValueError(f"{len(raw) - offset} bytes where {ctypes.sizeof(kind)} are needed")
    members = kind.from_buffer_copy(raw, offset)
    return body(**{name: _value(getattr(members, name)) for name, *_ in kind._fields_})


def pack(kind: Kind, serial: int, body: Any = None, rest: bytes = b"") -> bytes:
    """Return a message of a body and further bytes. ValueError: it is too long."""
    raw = (b"" if body is None else _raw(body)) + rest
    size = HEADER.size + len(raw)
    if size > _host.MESSAGE_MAX:
        raise ValueError(f"a message of {size} bytes; at most {_host.MESSAGE_MAX} are possible")
    return HEADER.pack(_host.MAGIC, _host.VERSION, kind, size, serial) + raw


def pack_welcome(serial: int, daemon: str, devices: Iterable[Device], settings: str) -> bytes:
    """Return WELCOME, with at most DEVICES_MAX devices."""
    listed, text = list(devices)[: _host.DEVICES_MAX], settings.encode()
    body = Welcome(daemon, len(listed), len(text))
    return pack(Kind.WELCOME, serial, body, b"".join(map(_raw, listed)) + text)


def pack_port(serial: int, lease_id: int, pages: int, page_bytes: int, spec: str) -> bytes:
    text = spec.encode()
    return pack(Kind.PORT, serial, Port(lease_id, pages, page_bytes, len(text)), text)


def pack_neighbors(serial: int, neighbors: Sequence[Neighbor]) -> bytes:
    """Return NEIGHBORS; serial 0: a notification."""
    return pack(Kind.NEIGHBORS, serial, Neighbors(len(neighbors)), b"".join(map(_raw, neighbors)))


def unpack(raw: bytes) -> Message:
    """Return a message; ValueError with the reason."""
    if len(raw) < HEADER.size:
        raise ValueError(f"a message of {len(raw)} bytes")
    magic, version, number, size, serial = HEADER.unpack_from(raw)
    if magic != _host.MAGIC:
        raise ValueError(f"magic {magic:#010x}, which is not HARP's")
    if version != _host.VERSION:
        raise ValueError(f"protocol version {version}; this is version {_host.VERSION}")
    if size != len(raw):
        raise ValueError(f"a header of {size} bytes in a message of {len(raw)}")
    try:
        kind = Kind(number)
    except ValueError as error:
        raise ValueError(f"unknown message type {number}") from error
    rest, body, records = raw[HEADER.size :], None, []
    if kind in BODIES:
        body = _read(BODIES[kind], rest)
        rest = rest[ctypes.sizeof(LAYOUTS[BODIES[kind]]) :]
    if kind in RECORDS:
        record, name, limit = RECORDS[kind]
        count, size = getattr(body, name), ctypes.sizeof(LAYOUTS[record])
        if count > limit:
            raise ValueError(f"{name} is {count}; the limit is {limit}")
        records = [_read(record, rest, index * size) for index in range(count)]
        rest = rest[count * size :]
    if kind in TEXTS:
        size = getattr(body, TEXTS[kind])
        if size > len(rest):
            raise ValueError(f"{len(rest)} bytes of text where {size} are needed")
        rest = rest[:size]
    return Message(kind, serial, body, records, rest)
