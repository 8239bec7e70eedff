# SPDX-License-Identifier: Apache-2.0
"""Waits for descriptors of any number: select() accepts none beyond 1023."""

import math
import select
from collections.abc import Iterable


def readable(fds: Iterable[int], limit_s: float) -> set[int]:
    """Return the descriptors that are readable or at their end; empty after limit_s."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    # Rounded up, so that a caller does not spin during the last millisecond.
    return {fd for fd, _ in poll.poll(max(0, math.ceil(limit_s * 1000)))}
