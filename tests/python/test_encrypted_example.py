# SPDX-License-Identifier: Apache-2.0
"""A second implementation agrees with docs/lanes.md's worked example of encrypted lanes."""

import hashlib
import re
import struct
from pathlib import Path

import pytest
import seal
from cryptography.exceptions import InvalidTag

PSK, SECRET = bytes(range(0x80, 0xA0)), bytes(range(16))
HELLO, CHALLENGE, SHORT, MAC = 64, 64, 32, 16


def example() -> list[bytes]:
    text = (Path(__file__).parents[2] / "docs" / "lanes.md").read_text(encoding="utf-8")
    section = text.split("### 8.1 Worked example\n", 1)[1]
    return [bytes.fromhex(block) for block in re.findall(r"```\n(.*?)```", section, re.DOTALL)[:3]]


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
            message = (b"HARP1 " + label).ljust(16) + preamble[: at - MAC]
            proof = hashlib.blake2s(message, key=key, digest_size=MAC).digest()
            assert proof == preamble[at - MAC : at], label
    assert at == len(preamble)


def test_keys_and_segment() -> None:
    preamble, keys, segment = example()
    connector, acceptor = seal.traffic_keys(keys[:32], preamble)
    assert (connector, acceptor) == (keys[32:64], keys[64:])
    close = struct.pack("<BBHIQQQII", 4, 0, 0, 0, 4, 0, 0, 0, 0)
    assert seal.Flow(connector).seal(close) == segment
    assert seal.Flow(connector).open(segment) == close
    with pytest.raises(InvalidTag):
        seal.Flow(acceptor).open(segment)
