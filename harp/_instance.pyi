# SPDX-License-Identifier: Apache-2.0
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from harp._core import Stack
from harp._drive import Source
from harp._nic import _Closing

class Instance(Source, _Closing):
    def __init__(
        self,
        ifname: str,
        queue: int | None = None,
        *,
        drive: bool = True,
        spin_us: float = 50.0,
        daemon: str | None = None,
        socket: str | os.PathLike[str] | None = None,
        label: str | None = None,
        xdp_mode: str = "auto",
        copy_mode: str = "auto",
        huge_pages: str | None = None,
        frame_count: int = 0,
        max_conns: int = 0,
        port_min: int = 0,
        port_max: int = 0,
        seed: int = 0,
        lib_dir: str | os.PathLike[str] | None = None,
        log: Callable[[int, str], None] | None = None,
        dpdk_memory_mib: int = 0,
    ) -> None: ...
    @property
    def ifname(self) -> str: ...
    @property
    def leased(self) -> bool: ...
    @property
    def describe(self) -> str: ...
    @property
    def mac(self) -> bytes: ...
    @property
    def mtu_bytes(self) -> int: ...
    def fileno(self) -> int: ...
    def control_fileno(self) -> int: ...
    def stats(self) -> dict[str, int]: ...
    def snapshot(self) -> np.void: ...
    def flows(self) -> np.ndarray[Any, np.dtype[np.void]]: ...
    def steering(self) -> dict[str, int]: ...
    @property
    def stack(self) -> Stack: ...
    def poll(self) -> int: ...
