# SPDX-License-Identifier: Apache-2.0
"""Good and bad sample values of every key, by type."""

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from harp.config import keys
from harp.config.keys import CORE_MAX, Key, Type

KEY40 = "6d5a" * 20
# Good and bad values of keys whose syntax does not follow from their type.
SYNTAX_SAMPLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "HARP_SOCKET": (("", "/run/x.sock", "/y"), ("x.sock", "./x", "~/x")),
    "HARP_RUN_DIR": (("/run/harp", "/"), ("run", "../harp")),
    "HARP_LIBDIR": (("", "/opt/harp", "/"), ("opt", "./lib")),
    "HARP_METRICS_ADDRESS": (
        ("127.0.0.1", "::", "0.0.0.0", "fe80::1"),
        ("localhost", "1.2.3", "1.2.3.4:80", "::1/64", "256.1.1.1"),
    ),
    "HARP_RSS": (
        (
            *("", "unknown", f"toeplitz:{KEY40}", f"toeplitz:{KEY40}:0,1,2,3"),
            f"toeplitz:{KEY40}6d",
        ),
        (
            *("toeplitz", "toeplitz:", "toeplitz:6d5a", f"toeplitz:{KEY40[1:]}"),
            *("UNKNOWN", "none "),
            *(f"toeplitz:{KEY40}{end}" for end in (":", ":0,", ":a", KEY40)),
        ),
    ),
    "ALLOW_SOURCES": (
        ("10.0.0.0/8", "fd00::/8", "0.0.0.0/0", "::/0", "192.0.2.7/32", "fe80::1/128"),
        (
            *(
                "10.0.0.1/8",
                "fd00::1/8",
                "10.0.0.0",
                "::1",
                "10.0.0.0/",
                "10.0.0.0/33",
                "10.0.0/24",
            ),
            *("10.0.0.0/-1", "10.0.0.0/+8", "10.0.0.0/8/8", "10.0.0.0/255.0.0.0", "fd00::/129"),
            *("010.0.0.0/8", "fe80::%eth0/64", "::ffff:10.0.0.0/104", "::ffff:0:0/96"),
            *("example.org/24", "/8", "0x0a000000/8", "167772160/8", "\u200b/8", "10.0.0.0/\u0668"),
            "9" * 127,
        ),
    ),
    "IFNAME": (
        ("eth1", "enp3s0f0np0", "a", "veth.100"),
        ("a/b", "a b", "a:1", ".", "..", "a\u00a0b"),
    ),
    "DEVICE": (
        ("0000:00:06.0", "0000:5e:00.1,txq_inline=128", "net_memif0,role=client,id=0", "net_tap0"),
        ("a b", "a;b", ",x", ";", "\u00e9", "0000:00:06.0;mtu=9000", "a(b"),
    ),
    "NAME": (("", "rail0", "net_memif0", "a.b-c"), ("a b", "a;b", "a/b", "a,b", "a=b", "\u00e9")),
    "ADDRESSES": (
        ("10.9.0.1/24", "fd00:9::1/64", "192.0.2.7/32", "2001:db8::7/128"),
        (
            *("10.9.0.1", "10.9.0.1/33", "10.9.0/24", "fd00::1", "fd00::1/129", "::/64"),
            *("224.0.0.1/8", "10.9.0.1/24;mtu=9000"),
        ),
    ),
    "GATEWAYS": (("10.9.0.254", "fd00:9::fe"), ("10.9.0.254/24", "router", "10.9.0", "fd00:")),
    "ROUTES": (
        ("10.8.0.0/16@10.9.0.254", "fd00:8::/48@fd00:9::fe"),
        ("10.8.0.0/16", "10.8.0.0@10.9.0.254", "10.8.0.0/16@fd00:9::fe", "@", "10.8.0.0/16@"),
    ),
}
SYNTAX_SAMPLES["RSS"] = SYNTAX_SAMPLES["HARP_RSS"]


def identity(key: Key) -> str:
    return key.place


def good(key: Key) -> Iterator[Any]:
    """TOML values: the bounds, and one in between."""
    match key.type:
        case Type.BOOL:
            yield from (True, False)
        case Type.U32 | Type.MS | Type.US:
            yield from (key.min, key.max, (key.min + key.max) // 2)
        case Type.CHOICE:
            yield from key.choices
        case Type.TEXT:
            if key.name in SYNTAX_SAMPLES:
                yield from SYNTAX_SAMPLES[key.name][0]
            else:
                yield from ("x" * max(key.min, 1), "x" * key.max, 'a "b" \\c', "é")
        case Type.LIST:
            if key.name in SYNTAX_SAMPLES:
                yield from ([], *([text] for text in SYNTAX_SAMPLES[key.name][0]))
                yield list(SYNTAX_SAMPLES[key.name][0][: key.max])
                return
            yield from ([], ["a"], ["a", "1001", "*"], [f"u{i}" for i in range(key.max)])
        case Type.CORES:
            yield from ("", "0", "7,3", "2,4-7", str(CORE_MAX - 1))
            yield from ([], [5, 4], list(range(key.max)))
        case Type.PORTS:
            yield from (f"{key.min}-{key.max}", "61000-61000", "2000-3000")


def bad(key: Key) -> Iterator[Any]:
    """Values of the wrong type, and values just out of range."""
    yield from (1.5, {"a": 1}, [[1]], ["a", 1], [True])
    match key.type:
        case Type.BOOL:
            yield from (0, 1, "true", "yes", "")
        case Type.U32 | Type.MS | Type.US:
            yield from (key.max + 1, -1, 2**63, True, str(key.max), "", "many", [key.max])
            if key.min:
                yield key.min - 1
        case Type.CHOICE:
            first = key.choices[0]
            yield from ("", "nonsense", first.upper(), key.unit, f"{first} ", 1, True)
            yield [first]
        case Type.TEXT:
            yield from ("x" * (key.max + 1), "a\nb", "a\x00b", "a\x7fb", "é" * key.max, 1, True, [])
            if key.min:
                yield ""
            yield from SYNTAX_SAMPLES.get(key.name, ((), ()))[1]
        case Type.LIST:
            yield from ("a", "", 1, [""], ["a b"], ["a,b"], ["a\nb"])
            yield ["x" * (64 if key.variable else 128)]
            yield [f"u{i}" for i in range(key.max + 1)]
            yield from ([text] for text in SYNTAX_SAMPLES.get(key.name, ((), ()))[1])
        case Type.CORES:
            yield from ["1,", ",1", "4-2", "1-", "-1", "1--2", "1,1", "0-3,2", "a", "+1"]
            yield from (" 1", "1 ")
            yield from (str(CORE_MAX), f"0-{CORE_MAX}", f"0-{key.max}", "1_0", "٣", 1, True)
            yield from ([1, 1], [-1], [CORE_MAX], list(range(key.max + 1)), ["1"], [1.0])
        case Type.PORTS:
            yield from ("", "61000", "61000-", "-61000", "65535-61000", "1-2", "61000-65536", 61000)
            yield from ("61000 - 65535", "61000-65535-", [61000, 65535], f"{key.min - 1}-{key.max}")


def texts(key: Key) -> st.SearchStrategy[str]:
    """Good and bad texts similar to the key's values, on which both parsers must agree."""
    number = st.integers(0, max(2 * key.max, 10)).map(str)
    similar = st.text("0123456789-,+ x_", max_size=12)
    words = st.sampled_from([*(key.choices or ("x",)), "", key.unit or "x"])
    anything = st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\x00\n"), max_size=8
    )
    return st.one_of(number, similar, words, anything)


TABLE_KEYS = [key for key in keys.all_keys() if key.table]
JOB_KEYS = [key for key in keys.global_keys() if keys.Reader.JOB in key.readers]
