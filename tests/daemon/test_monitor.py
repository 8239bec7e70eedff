# SPDX-License-Identifier: Apache-2.0
"""A monitor of links and addresses that announces changes without end."""

import errno
import struct

import pytest

from harp.daemon import netlink


class Talker:
    """A socket of which every read is this; one read too many fails."""

    def __init__(self, what: bytes | OSError, reads_max: int = 10 * netlink.READS_MAX) -> None:
        self.what, self.left = what, reads_max

    def recvfrom(self, _size: int) -> tuple[bytes, tuple[int, int]]:
        self.left -= 1
        assert self.left > 0, "it reads for ever"
        if isinstance(self.what, OSError):
            raise self.what
        return self.what, (0, 0)


# RTM_NEWLINK of the interface with index 7.
NEW_LINK = struct.pack("=IHHII", 32, 16, 0, 0, 0) + struct.pack("=BxHiII", 0, 1, 7, 0, 0)
NO_BUFFER = OSError(errno.ENOBUFS, "No buffer space available")


@pytest.mark.parametrize(
    ("what", "expected"),
    [(NEW_LINK, netlink.Changes(interfaces={7})), (NO_BUFFER, netlink.Changes(lost=True))],
    ids=["change", "lost"],
)
def test_endless_changes_do_not_block_the_loop(
    what: bytes | OSError, expected: netlink.Changes
) -> None:
    monitor = netlink.NetworkMonitor()
    monitor.close()
    monitor._sock = Talker(what)  # type: ignore[assignment]
    assert monitor.read() == expected
