# SPDX-License-Identifier: Apache-2.0
"""The monitor of links and addresses when it talks without end, or is broken."""

import errno
import os
import socket
import stat

import pytest
from daemon_rig import Running

from harp.daemon import daemon, netlink


class Talker:
    """A socket of which every read is this; one read too many fails."""

    def __init__(self, what: bytes | OSError, reads_max: int = 10 * netlink.READS_MAX) -> None:
        self.what, self.left = what, reads_max

    def recv(self, _size: int) -> bytes:
        self.left -= 1
        assert self.left > 0, "it reads for ever"
        if isinstance(self.what, OSError):
            raise self.what
        return self.what


@pytest.mark.parametrize("what", [b"news", OSError(errno.ENOBUFS, "No buffer space available")])
def test_endless_changes_do_not_block_the_loop(what: bytes | OSError) -> None:
    assert netlink.drain(Talker(what))  # type: ignore[arg-type]


def test_no_change_causes_no_notification() -> None:
    with netlink.monitor() as monitor:
        netlink.drain(monitor)
        assert not netlink.drain(monitor)


def test_a_broken_monitor_is_replaced(
    harpd: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(daemon, "MONITOR_AGAIN_S", 0.01)
    monkeypatch.setattr(netlink, "monitor", _failing_once(netlink.monitor))
    loop = harpd.daemon.loop

    def breaks() -> None:
        assert harpd.daemon._monitor is not None
        fd = harpd.daemon._monitor.fileno()
        loop.remove_reader(fd)
        with os.fdopen(os.eventfd(1), "rb") as readable:  # and no socket
            os.dup2(readable.fileno(), fd)
        loop.add_reader(fd, harpd.daemon._network_changed)

    harpd.call(breaks)

    def listens() -> bool:
        monitor = harpd.daemon._monitor
        return (
            monitor is not None
            and monitor.fileno() >= 0
            and stat.S_ISSOCK(os.fstat(monitor.fileno()).st_mode)
            and monitor.fileno() in loop._selector.get_map()  # type: ignore[attr-defined]
        )

    harpd.until(listens, "a monitor")
    assert caplog.text.count("operation on non-socket; opening a new monitor") == 1
    with harpd.client() as client:
        assert client.query("status")["nics"]


def _failing_once(made: object) -> object:
    calls = []

    def monitor() -> socket.socket:
        calls.append(1)
        if len(calls) == 1:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return made()  # type: ignore[operator,no-any-return]

    return monitor
