# SPDX-License-Identifier: Apache-2.0
"""Converts values from a variable's text or TOML, and back. ValueError has the reason."""

import ipaddress
import json
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from harp._core import port_spec
from harp.config.keys import CORE_MAX, Key, Type
from harp.words import suggestion

# LIST: a tuple of words; CORES: of numbers; PORTS: a pair; MS and US: numbers in the key's unit.
Setting = bool | int | str | tuple[str, ...] | tuple[int, ...]

_RSS = re.compile(r"toeplitz:((?:[0-9a-fA-F]{2}){40,64})(?::([0-9]{1,5}(?:,[0-9]{1,5}){0,511}))?")
_IFNAME = re.compile(r"[^\s/:]{1,15}")
_RANGE = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,15}))?")


def quote(value: object) -> str:
    """Quote a value for a message: short, without control characters."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        text = "an array of arrays"
    clean = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[:81])
    return clean if len(text) <= 80 else clean[:77] + "..."


def _number(text: str, key: Key) -> int:
    # Not int(): "+1", "1_000", " 1 " and digits of other scripts are invalid here and in C.
    if not re.fullmatch(r"0*[0-9]{1,20}", text):
        raise ValueError(f"must be {key.accepts}")
    return _in_range(int(text), key)


def _in_range(number: int, key: Key) -> int:
    if not key.min <= number <= key.max:
        raise ValueError(f"must be {key.accepts}")
    return number


def _choice(text: str, key: Key) -> str:
    if text not in key.choices:
        raise ValueError(f"must be {key.accepts}{suggestion(text, key.choices)}")
    return text


def _text(text: str, key: Key) -> str:
    length = len(text.encode("utf-8", "surrogateescape"))
    if not key.min <= length <= key.max or not all(c >= " " and c != "\x7f" for c in text):
        raise ValueError(f"must be {key.accepts}")
    return text


def _words(words: Iterable[str], key: Key) -> tuple[str, ...]:
    result = tuple(words)
    # An IPv6 route is two addresses. The plugin has the same limit for variables.
    most = 63 if key.variable else 127
    is_valid = all(re.fullmatch(rf"[^\s,\x00-\x1f\x7f]{{1,{most}}}", word) for word in result)
    if len(result) > key.max or not is_valid:
        raise ValueError(f"must be {key.accepts}")
    return result


def _cores(numbers: Iterable[int], key: Key) -> tuple[int, ...]:
    result: list[int] = []
    for number in numbers:
        if not 0 <= number < CORE_MAX or number in result or len(result) == key.max:
            raise ValueError(f"must be {key.accepts}")
        result.append(number)
    return tuple(result)


def _spans(text: str, key: Key) -> Iterable[int]:
    """Return the numbers of "2,4-7"."""
    for part in text.split(",") if text else ():
        match = _RANGE.fullmatch(part)
        if match is None or len(part) > 15:
            raise ValueError(f"must be {key.accepts}")
        first = int(match[1])
        last = int(match[2] or first)
        if last < first or last >= CORE_MAX:
            raise ValueError(f"must be {key.accepts}")
        yield from range(first, last + 1)


def _ports(text: str, key: Key) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", text)
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if match is None or not key.min <= first <= last <= key.max:
        raise ValueError(f"must be {key.accepts}")
    return first, last


# ---- Checks of the meaning of a text, in addition to its type ----
def _absolute(text: str) -> None:
    if text and not text.startswith("/"):
        raise ValueError("must be an absolute path: it must mean the same to every process")


def _address(text: str) -> None:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise ValueError("must be an IPv4 or IPv6 address, such as 127.0.0.1 or ::") from None


def bare_address(text: str) -> str:
    """Return the address in 10.9.0.1/24, in canonical form."""
    bare = text.partition("/")[0]
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return bare


def _ifname(text: str) -> None:
    if not _IFNAME.fullmatch(text) or text in (".", ".."):
        raise ValueError("must be the name of one interface, without spaces, / or :")


def _rss(text: str) -> None:
    if text in ("", "unknown"):
        return
    if not _RSS.fullmatch(text):
        raise ValueError(
            "must be empty, unknown, or toeplitz:KEY[:TABLE] with KEY 40 to 64 bytes in "
            "hexadecimal and TABLE at most 512 queue numbers with commas between"
        )


def _prefix_problem(text: str) -> str:
    """Return why a prefix cannot contain a packet's source; empty: it is valid."""
    address, _, bits = text.partition("/")
    try:
        # ipaddress also accepts a netmask, a zone and no slash, which are mistakes here.
        if not re.fullmatch(r"[0-9]{1,3}", bits) or "%" in address:
            raise ValueError
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return "write ADDRESS/BITS"
    if network.network_address != ipaddress.ip_address(address):
        return f"it has bits set after the first {network.prefixlen}; write {network}"
    if network.version == 6 and network.network_address.ipv4_mapped is not None:
        return "no packet comes from a mapped address; write the IPv4 prefix"
    return ""


def _prefix(text: str) -> None:
    problem = _prefix_problem(text)
    if problem:
        raise ValueError(
            f"must be prefixes like 10.0.0.0/8 or fd00::/8, and {quote(text)} is not: {problem}"
        )


def _in_port(key: str) -> Callable[[str], None]:
    """Check a part of a port specification with harp_port_spec_parse()."""
    # A gateway must be of the family of one of the addresses.
    others = "" if key in ("", "ip") else ";ip=192.0.2.1/32;ip=2001:db8::1/128"

    def check(word: str) -> None:
        if not word:
            return
        if ";" in word:
            raise ValueError("must be without semicolons, which end a part of a port specification")
        try:
            port_spec(f"net_null0{others};{key}={word}" if key else word)
        except ValueError as error:
            why = str(error).split(": ", 2 if key else 1)[-1]
            raise ValueError(
                f"must be valid for a DPDK port, and {quote(word)} is not: {why}"
            ) from None

    return check


_MEANING: dict[str, Callable[[str], None]] = {
    "HARP_METRICS_ADDRESS": _address,
    "HARP_RUN_DIR": _absolute,
    "HARP_SOCKET": _absolute,
    "HARP_LIBDIR": _absolute,
    "HARP_RSS": _rss,
    "IFNAME": _ifname,
    "RSS": _rss,
    "ALLOW_SOURCES": _prefix,
    "DEVICE": _in_port(""),
    "NAME": _in_port("name"),
    "ADDRESSES": _in_port("ip"),
    "GATEWAYS": _in_port("gw"),
    "ROUTES": _in_port("route"),
}


_Kind = TypeVar("_Kind", bound=Setting)


def _check_meaning(value: _Kind, key: Key) -> _Kind:
    check = _MEANING.get(key.name)
    if check is not None:
        for text in value if isinstance(value, tuple) else (value,):
            check(str(text))
    return value


def from_text(text: str, key: Key) -> Setting:
    """Parse a variable's text as the plugin does."""
    match key.type:
        case Type.BOOL:
            if text not in ("true", "false"):
                raise ValueError(f"must be {key.accepts}")
            return text == "true"
        case Type.CHOICE:
            return _choice(text, key)
        case Type.TEXT:
            return _check_meaning(_text(text, key), key)
        case Type.LIST:
            return _check_meaning(_words(text.split(",") if text else (), key), key)
        case Type.CORES:
            return _cores(_spans(text, key), key)
        case Type.PORTS:
            return _ports(text, key)
    return _number(text, key)


def _wrong_type(value: object, key: Key) -> ValueError:
    hint = ""
    if isinstance(value, str) and key.type is Type.BOOL and value in ("true", "false"):
        hint = f": write {value} without quotes"
    elif isinstance(value, str) and value.isascii() and value.isdigit():
        hint = f": write {value[:20]} without quotes"
    return ValueError(f"must be {key.accepts}{hint}")


def from_toml(value: object, key: Key) -> Setting:
    match key.type, value:
        case Type.BOOL, bool():
            return value
        case Type.LIST, list() if all(isinstance(item, str) for item in value):
            return _check_meaning(_words(value, key), key)
        case Type.LIST, _:
            raise ValueError('must be an array of texts, like ["a", "b"]')
        case Type.CORES, list() if all(type(item) is int for item in value):
            return _cores(value, key)
        case Type.CHOICE | Type.TEXT | Type.PORTS | Type.CORES, str():
            return from_text(value, key)
        case Type.CORES, _:
            raise ValueError(f"must be {key.accepts}, or an array of numbers")
        case Type.U32 | Type.MS | Type.US, int() if type(value) is int:  # a bool is no number here
            return _in_range(value, key)
    raise _wrong_type(value, key)


def preset(key: Key) -> Setting:
    if not key.preset and key.type is Type.TEXT:
        return ""  # a required key ([[nic]] ifname) has no default; written, it may not be empty
    return from_text(key.preset, key)


def spans(numbers: Iterable[int]) -> str:
    """Format (2, 4, 5, 6, 7) as 2,4-7."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def to_text(value: Setting, key: Key) -> str:
    """Format a value for a variable; the inverse of from_text()."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        if key.type is Type.PORTS:
            return f"{value[0]}-{value[1]}"
        if key.type is Type.CORES:
            return spans(int(number) for number in value)
        return ",".join(str(word) for word in value)
    return str(value)


def to_toml(value: Setting, key: Key) -> str:
    if isinstance(value, (bool, int)):
        return to_text(value, key)
    if key.type is Type.LIST and isinstance(value, tuple):
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(to_text(value, key), ensure_ascii=False)


def to_json(value: Setting) -> bool | int | str | list[str] | list[int]:
    """Convert a value to JSON's types: tuples become lists."""
    if isinstance(value, tuple):
        return list(value)  # type: ignore[return-value]
    return value
