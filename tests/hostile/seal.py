# SPDX-License-Identifier: Apache-2.0
"""Sealed lanes, written a second time, from docs/lanes.md alone, down to AES.

Slow (7 ms a kilobyte) and not constant in time: for tests only. That this AES-GCM is the real one
is checked with McGrew's and Viega's test cases (tests/python/test_sealed_example.py).
"""

from __future__ import annotations

import hashlib
import struct

SEGMENT_BYTES_MAX = 16384
KEY_SEGMENTS = 1 << 20
HEAD_BYTES, TAG_BYTES = 4, 16


class BadTagError(Exception):
    """What came is not what was sealed."""


# ---- AES-256 (FIPS 197), encryption only ---------------------------------------------------------


def _times2(a: int) -> int:
    return (a << 1) ^ (0x11B if a & 0x80 else 0)


def _make_sbox() -> bytes:
    """Section 5.1.1: the inverse in GF(2^8), then an affine map."""
    power, log = [1], {1: 0}
    for exponent in range(1, 255):
        value = _times2(power[-1]) ^ power[-1]  # 3 generates the field
        power.append(value)
        log[value] = exponent
    box = bytearray()
    for a in range(256):
        inverse = power[(255 - log[a]) % 255] if a else 0
        turned = [(inverse << n | inverse >> (8 - n)) & 255 for n in range(5)]
        box.append(turned[0] ^ turned[1] ^ turned[2] ^ turned[3] ^ turned[4] ^ 0x63)
    return bytes(box)


_SBOX = _make_sbox()


class Aes256:
    """One key."""

    def __init__(self, key: bytes) -> None:
        words = [key[i : i + 4] for i in range(0, 32, 4)]
        rcon = 1
        for i in range(8, 60):
            word = words[-1]
            if i % 8 == 0:
                word = bytes(_SBOX[b] for b in word[1:] + word[:1])
                word = bytes([word[0] ^ rcon]) + word[1:]
                rcon = _times2(rcon)
            elif i % 8 == 4:
                word = bytes(_SBOX[b] for b in word)
            words.append(bytes(a ^ b for a, b in zip(words[i - 8], word, strict=True)))
        self.round_keys = [b"".join(words[i : i + 4]) for i in range(0, 60, 4)]

    def encrypt(self, block: bytes) -> bytes:
        """One block of 16 bytes, column by column."""
        state = [a ^ b for a, b in zip(block, self.round_keys[0], strict=True)]
        for number, round_key in enumerate(self.round_keys[1:], 1):
            state = [_SBOX[state[(i + 4 * (i % 4)) % 16]] for i in range(16)]
            if number < 14:
                mixed = []
                for column in range(0, 16, 4):
                    a = state[column : column + 4]
                    every = a[0] ^ a[1] ^ a[2] ^ a[3]
                    mixed += [a[i] ^ every ^ _times2(a[i] ^ a[(i + 1) % 4]) for i in range(4)]
                state = mixed
            state = [a ^ b for a, b in zip(state, round_key, strict=True)]
        return bytes(state)


# ---- GCM (NIST SP 800-38D), nonces of 96 bits ----------------------------------------------------


class AesGcm:
    """One key."""

    def __init__(self, key: bytes) -> None:
        self.aes = Aes256(key)
        self.h = int.from_bytes(self.aes.encrypt(bytes(16)), "big")

    def _times_h(self, x: int) -> int:
        product, v = 0, self.h
        for bit in range(127, -1, -1):
            if x >> bit & 1:
                product ^= v
            v = v >> 1 ^ (0xE1 << 120 if v & 1 else 0)
        return product

    def _hash(self, head: bytes, text: bytes) -> int:
        y = 0
        for part in (head, text):
            for at in range(0, len(part), 16):
                block = part[at : at + 16].ljust(16, b"\0")
                y = self._times_h(y ^ int.from_bytes(block, "big"))
        return self._times_h(y ^ (8 * len(head) << 64 | 8 * len(text)))

    def _stream(self, nonce: bytes, text: bytes) -> bytes:
        out = bytearray()
        for number, at in enumerate(range(0, len(text), 16), 2):
            pad = self.aes.encrypt(nonce + struct.pack(">I", number))
            out += bytes(a ^ b for a, b in zip(text[at : at + 16], pad, strict=False))
        return bytes(out)

    def _tag(self, nonce: bytes, head: bytes, text: bytes) -> bytes:
        mask = int.from_bytes(self.aes.encrypt(nonce + b"\0\0\0\1"), "big")
        return (self._hash(head, text) ^ mask).to_bytes(16, "big")

    def seal(self, nonce: bytes, plain: bytes, head: bytes) -> bytes:
        """Ciphertext and tag."""
        text = self._stream(nonce, plain)
        return text + self._tag(nonce, head, text)

    def open(self, nonce: bytes, sealed: bytes, head: bytes) -> bytes:
        """The plaintext. Raises BadTagError."""
        text, tag = sealed[:-TAG_BYTES], sealed[-TAG_BYTES:]
        if tag != self._tag(nonce, head, text):
            raise BadTagError
        return self._stream(nonce, text)


# ---- docs/lanes.md, section 8 --------------------------------------------------------------------


def _blake2s(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2s(data, key=key, digest_size=32).digest()


def preamble_key(psk: bytes, secret: bytes) -> bytes:
    """What every MAC of a sealed lane's preamble is made with, instead of the secret."""
    return _blake2s(psk, b"HARP1 sealed    " + secret)


def traffic_keys(key: bytes, transcript: bytes) -> tuple[bytes, bytes]:
    """Of what the connector sends, of what the acceptor sends; key: preamble_key()."""
    return (
        _blake2s(key, b"HARP1 conn sends" + transcript),
        _blake2s(key, b"HARP1 acc sends " + transcript),
    )


class Flow:
    """One direction of a lane."""

    def __init__(self, key: bytes) -> None:
        self.key, self.gcm, self.segment = key, AesGcm(key), 0

    def _nonce(self) -> bytes:
        if self.segment and self.segment % KEY_SEGMENTS == 0:
            self.key = _blake2s(self.key, b"HARP1 next key  ")
            self.gcm = AesGcm(self.key)
        nonce = struct.pack("<QI", self.segment, 0)
        self.segment += 1
        return nonce

    def seal(self, plain: bytes) -> bytes:
        """One segment."""
        head = struct.pack("<I", len(plain))
        return head + self.gcm.seal(self._nonce(), plain, head)

    def open(self, segment: bytes) -> bytes:
        """Its plaintext. Raises BadTagError."""
        head, sealed = segment[:HEAD_BYTES], segment[HEAD_BYTES:]
        assert len(sealed) == struct.unpack("<I", head)[0] + TAG_BYTES
        return self.gcm.open(self._nonce(), sealed, head)
