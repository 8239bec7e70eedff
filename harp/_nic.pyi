# SPDX-License-Identifier: Apache-2.0
from typing import Self

class _Closing:
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

class Nic:
    @property
    def mac(self) -> bytes: ...
    @property
    def mtu_bytes(self) -> int: ...
    @property
    def mode(self) -> str: ...

class CallbackNic(Nic, _Closing):
    def __init__(
        self,
        *,
        mac: str | bytes = ...,
        mtu_bytes: int = 1500,
    ) -> None: ...
    def inject(self, frame: object) -> None: ...
    def collect(self) -> list[bytes]: ...

class Wire(_Closing):
    ports: int
    def __init__(
        self,
        *,
        ports: int = 2,
        seed: int = 0,
        mtu_bytes: int = 1500,
        strict: bool = True,
    ) -> None: ...
    def port(self, index: int) -> Nic: ...
    def impair(
        self,
        port: int,
        *,
        delay_ns: int = 0,
        jitter_ns: int = 0,
        rate_bps: int = 0,
        queue_bytes: int = 0,
        loss_ppm: int = 0,
        duplicate_ppm: int = 0,
        reorder_ppm: int = 0,
        reorder_ns: int = 0,
        corrupt_ppm: int = 0,
        down: bool = False,
    ) -> None: ...
    def stats(self, port: int) -> dict[str, int]: ...
    @property
    def in_flight(self) -> int: ...
