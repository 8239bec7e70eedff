# SPDX-License-Identifier: Apache-2.0
"""The monitor of links and addresses when it talks without end, or is broken."""

import errno
import os
import struct

import pytest
from daemon_rig import Running

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


def test_no_change_causes_no_notification() -> None:
    monitor = netlink.NetworkMonitor(netlink.MONITOR_GROUPS)
    monitor.read()
    assert monitor.read() == netlink.Changes()
    monitor.close()


def test_a_broken_monitor_leaves_the_timer(
    harpd: Running, caplog: pytest.LogCaptureFixture
) -> None:
    loop, monitor = harpd.daemon.loop, harpd.daemon._monitor
    assert monitor is not None
    fd = monitor.fileno()

    def breaks() -> None:
        loop.remove_reader(fd)
        with os.fdopen(os.eventfd(1), "rb") as readable:  # and no socket
            os.dup2(readable.fileno(), fd)
        loop.add_reader(monitor, harpd.daemon._network_changed)

    harpd.call(breaks)
    harpd.until(lambda: monitor.fileno() < 0, "its end")
    assert caplog.text.count("operation on non-socket; harpd looks every 30 s") == 1
    with harpd.client() as client:
        assert client.query("status")["nics"]
