# SPDX-License-Identifier: Apache-2.0
"""An independent implementation of encrypted lanes, written from docs/lanes.md alone."""

import hashlib
import struct

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_SEGMENTS = 1 << 20
HEAD_BYTES, TAG_BYTES = 4, 16


def _blake2s(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2s(data, key=key, digest_size=32).digest()


def preamble_key(psk: bytes, secret: bytes) -> bytes:
    """The key of all MACs in an encrypted lane's preamble; it replaces the secret."""
    return _blake2s(psk, b"HARP1 sealed    " + secret)


def traffic_keys(key: bytes, transcript: bytes) -> tuple[bytes, bytes]:
    """The send keys of the connector and of the acceptor; key: preamble_key()."""
    return (
        _blake2s(key, b"HARP1 conn sends" + transcript),
        _blake2s(key, b"HARP1 acc sends " + transcript),
    )


class Flow:
    """One direction of a lane."""

    def __init__(self, key: bytes) -> None:
        self.key, self.gcm, self.segment = key, AESGCM(key), 0

    def _nonce(self) -> bytes:
        if self.segment and self.segment % KEY_SEGMENTS == 0:
            self.key = _blake2s(self.key, b"HARP1 next key  ")
            self.gcm = AESGCM(self.key)
        nonce = struct.pack("<QI", self.segment, 0)
        self.segment += 1
        return nonce

    def seal(self, plain: bytes) -> bytes:
        """Encrypts one segment."""
        head = struct.pack("<I", len(plain))
        return head + self.gcm.encrypt(self._nonce(), plain, head)

    def open(self, segment: bytes) -> bytes:
        """Decrypts one segment. Raises InvalidTag."""
        head, ciphertext = segment[:HEAD_BYTES], segment[HEAD_BYTES:]
        assert len(ciphertext) == struct.unpack("<I", head)[0] + TAG_BYTES
        return self.gcm.decrypt(self._nonce(), ciphertext, head)
