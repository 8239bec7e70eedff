# SPDX-License-Identifier: Apache-2.0
"""Waiting for descriptors whatever their numbers: select() takes none beyond 1023."""

import math
import select
from collections.abc import Iterable


def readable(fds: Iterable[int], limit_s: float) -> set[int]:
    """Those that can be read, or have ended, as soon as there is one; none after limit_s."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    # Rounded up: who waits for the rest of a millisecond must not look for all of it.
    return {fd for fd, _ in poll.poll(max(0, math.ceil(limit_s * 1000)))}
