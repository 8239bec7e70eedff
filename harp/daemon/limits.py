# SPDX-License-Identifier: Apache-2.0
"""Limits per client: messages per second, connections, memory."""

import contextlib
import errno
import math
import resource
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DESCRIPTORS_RESERVED = 48  # for harpd itself, and for leases that it prepares
DESCRIPTORS_MIN = DESCRIPTORS_RESERVED + 3 * 4  # plus those of four connections
MEMORY_RESERVED = 256 << 20  # for harpd itself, its answers and the exporter of metrics


@dataclass
class Bucket:
    """A token bucket. now_s: the caller's clock, in seconds."""

    rate_per_s: float
    burst: float
    tokens: float = math.inf  # _refill() limits it to burst
    at_s: float = 0.0

    def _refill(self, now_s: float) -> None:
        self.tokens = min(self.burst, self.tokens + (now_s - self.at_s) * self.rate_per_s)
        self.at_s = now_s

    def take(self, now_s: float) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        self._refill(now_s)
        # Slightly less than a token suffices, or rounding would make a caller wait again.
        if self.tokens >= 1.0 - 1e-9:
            self.tokens = max(0.0, self.tokens - 1.0)
            return 0.0
        return (1.0 - self.tokens) / self.rate_per_s

    def charge(self, count: float, now_s: float) -> None:
        """Take tokens, even if there are too few: the debt, at most a burst, delays take()."""
        self._refill(now_s)
        self.tokens = max(-self.burst, self.tokens - count)

    def is_full(self, now_s: float) -> bool:
        """Tell whether the bucket equals a new one."""
        return self.tokens + (now_s - self.at_s) * self.rate_per_s >= self.burst


class Buckets:
    """One bucket per key. Full ones are removed."""

    _SWEEP_AT = 1024

    def __init__(self, rate_per_s: float, burst: float) -> None:
        self._rate_per_s, self._burst = rate_per_s, burst
        self._buckets: dict[int, Bucket] = {}

    def take(self, key: int, now_s: float) -> float:
        return self._of(key, now_s).take(now_s)

    def charge(self, key: int, count: float, now_s: float) -> None:
        self._of(key, now_s).charge(count, now_s)

    def _of(self, key: int, now_s: float) -> Bucket:
        if len(self._buckets) >= self._SWEEP_AT:
            self._buckets = {k: b for k, b in self._buckets.items() if not b.is_full(now_s)}
        return self._buckets.setdefault(key, Bucket(self._rate_per_s, self._burst))


def connections_possible(limit: int) -> int:
    """Reduce the limit of connections: each needs a socket, a pidfd and a descriptor to send."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(limit, (soft - DESCRIPTORS_RESERVED) // 3)


def own_group() -> Path | None:
    """Return the directory of this process's control group (version 2); None without one."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return Path("/sys/fs/cgroup" + line.removeprefix("0::"))
    return None


class MemoryBudget:
    """Memory for frames that is left in harpd's control group. Any thread may use it.

    The kernel would kill harpd if a lease exceeded MemoryMax= of the unit.
    """

    def __init__(self, group: Path | None = None) -> None:
        self._group = group or own_group()
        self._lock = threading.Lock()
        self._promised = 0  # bytes of leases that harpd prepares

    def _left(self) -> int | None:
        """Return the bytes left; None: there is no limit."""
        if self._group is None:
            return None
        try:
            limit = (self._group / "memory.max").read_text().strip()
            used = int((self._group / "memory.current").read_text())
        except OSError:  # memory is not accounted
            return None
        return None if limit == "max" else int(limit) - used

    @contextlib.contextmanager
    def take(self, size: int) -> Iterator[None]:
        with self._lock:
            left = self._left()
            if left is not None and left - self._promised < size + MEMORY_RESERVED:
                raise OSError(
                    errno.ENOMEM,
                    f"harpd's control group has {max(0, left - self._promised) >> 20} MiB left, "
                    f"and the frames take up to {size >> 20} MiB; use fewer frames (HARP_FRAMES), "
                    "or raise MemoryMax= of harpd.service",
                )
            self._promised += size
        try:
            yield
        finally:
            with self._lock:
                self._promised -= size
