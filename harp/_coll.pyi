# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence
from typing import Any

from harp.collectives.store import Store

class CollectiveError(RuntimeError):
    code: int
    def __init__(self, message: str, code: int) -> None: ...

def log_lines() -> list[tuple[int, str]]: ...

class Request:
    result: Any
    def test(self) -> bool: ...
    def wait(self, timeout_s: float | None = None) -> Any: ...
    @property
    def source(self) -> int: ...
    @property
    def count(self) -> int: ...

class Group:
    rank: int
    world: int
    store: Store | None
    def __init__(
        self,
        rank: int,
        world: int,
        name: str,
        store: Store | None,
        *,
        plugin: object = None,
        device: int = 0,
        timeout_s: float = 300,
        host: str | None = None,
        wire: int = 0,
    ) -> None: ...
    def run(
        self,
        op: int,
        reduce: int = 0,
        wire: int = 0,
        peer: int = 0,
        tag: int = 0,
        source: object = None,
        target: object = None,
        count: int | None = None,
        in_counts: Sequence[int] | None = None,
        out_counts: Sequence[int] | None = None,
        dtype: int = -1,
    ) -> None: ...
    def start(
        self,
        op: int,
        reduce: int = 0,
        wire: int = 0,
        peer: int = 0,
        tag: int = 0,
        source: object = None,
        target: object = None,
        count: int | None = None,
        in_counts: Sequence[int] | None = None,
        out_counts: Sequence[int] | None = None,
        dtype: int = -1,
        result: object = None,
    ) -> Request: ...
    def abort(self, reason: str = "") -> None: ...
    def stats(self) -> dict[str, int]: ...
    def net(self) -> dict[str, str | int]: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
