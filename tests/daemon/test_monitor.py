# SPDX-License-Identifier: Apache-2.0
"""A monitor of links and addresses that announces changes without end."""

import errno

import pytest

from harp.daemon import netlink


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
