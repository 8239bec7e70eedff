# SPDX-License-Identifier: Apache-2.0
"""The worked example of sealed lanes in docs/lanes.md, by an implementation down to AES."""

from __future__ import annotations

import hashlib
import re
import struct
from pathlib import Path

import pytest
import seal

PSK, SECRET = bytes(range(0x80, 0xA0)), bytes(range(16))
HELLO, CHALLENGE, SHORT, MAC = 64, 64, 32, 16


def example() -> list[bytes]:
    """The blocks of section 8.1."""
    text = (Path(__file__).parents[2] / "docs" / "lanes.md").read_text(encoding="utf-8")
    section = text.split("### 8.1 Worked example\n", 1)[1]
    return [bytes.fromhex(block) for block in re.findall(r"```\n(.*?)```", section, re.DOTALL)[:3]]


@pytest.mark.parametrize(
    ("key", "nonce", "plain", "head", "want"),
    [
        # The Galois/Counter Mode of Operation (McGrew, Viega), test cases 13, 14 and 16.
        ("00" * 32, "00" * 12, "", "", "530f8afbc74536b9a963b4f1c4cb738b"),
        (
            "00" * 32,
            "00" * 12,
            "00" * 16,
            "",
            "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919",
        ),
        (
            "feffe9928665731c6d6a8f9467308308" * 2,
            "cafebabefacedbaddecaf888",
            "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
            "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
            "feedfacedeadbeeffeedfacedeadbeefabaddad2",
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
            "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
            "76fc6ece0f4e1768cddf8853bb2d551b",
        ),
    ],
)
def test_the_cipher_is_the_real_one(key: str, nonce: str, plain: str, head: str, want: str) -> None:
    gcm = seal.AesGcm(bytes.fromhex(key))
    sealed = gcm.seal(bytes.fromhex(nonce), bytes.fromhex(plain), bytes.fromhex(head))
    assert sealed.hex() == want
    assert gcm.open(bytes.fromhex(nonce), sealed, bytes.fromhex(head)).hex() == plain


def test_proofs() -> None:
    preamble, keys, _ = example()
    key = seal.preamble_key(PSK, SECRET)
    assert key == keys[:32]
    at = 0
    for size, label in (
        (HELLO, b""),
        (CHALLENGE, b"acceptor"),
        (SHORT, b"connector"),
        (SHORT, b"ready"),
    ):
        at += size
        if label:
            said = (b"HARP1 " + label).ljust(16) + preamble[: at - MAC]
            proof = hashlib.blake2s(said, key=key, digest_size=MAC).digest()
            assert proof == preamble[at - MAC : at], label
    assert at == len(preamble)


def test_keys_and_segment() -> None:
    preamble, keys, segment = example()
    connector, acceptor = seal.traffic_keys(keys[:32], preamble)
    assert (connector, acceptor) == (keys[32:64], keys[64:])
    close = struct.pack("<BBHIQQQII", 4, 0, 0, 0, 4, 0, 0, 0, 0)
    assert seal.Flow(connector).seal(close) == segment
    assert seal.Flow(connector).open(segment) == close
    with pytest.raises(seal.BadTagError):
        seal.Flow(acceptor).open(segment)
