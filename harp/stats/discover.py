# SPDX-License-Identifier: Apache-2.0
"""Finds statistics pages: memfds named harp-page that processes hold open (/proc/PID/fd).

A page that several processes hold (a forked child, harpd) is listed once, and belongs to the
process that its identity names. Processes whose descriptors can't be read are counted. Each user's
pages are limited, because any user can create many.
"""

import contextlib
import errno
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from harp import _page, memfd
from harp.closing import Closing
from harp.procfs import PROC, status_field
from harp.stats.page import PageError, identity
from harp.words import printable

PAGES_MAX = 4096
# Limits per user, except root: readers read all pages, and pages cost their holders nothing. A
# process counts as PROCESS_LINKS descriptors.
USER_LINKS_MAX = 65536
PROCESS_LINKS = 16
USER_PAGES_MAX = 512
USER_BYTES_MAX = 128 << 20
_MORE = {
    "descriptors": "has more descriptors open",
    "pages": "publishes more pages",
    "bytes": "publishes more pages",
}


@dataclass
class Page:
    """An open page. The kernel names pid and uid, as seen from here; the process chose comm."""

    fd: int
    pid: int
    uid: int
    comm: str
    inode: int
    size: int = 0  # bytes
    job: bool = False  # the page of a job; else of a stack

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@dataclass
class Found(Closing):
    """The result of a search; closes its pages at the end of the block."""

    pages: list[Page] = field(default_factory=list)  # of stacks
    jobs: list[Page] = field(default_factory=list)
    hidden_processes: int = 0  # processes whose descriptors can't be read
    bad: list[tuple[int, PageError]] = field(default_factory=list)  # pid, reason

    def close(self) -> None:
        for page in (*self.pages, *self.jobs):
            page.close()


def _processes(proc: Path) -> Iterator[int]:
    with os.scandir(proc) as entries:
        yield from sorted(int(entry.name) for entry in entries if entry.name.isdigit())


def _numbers(fds: Path) -> list[int]:
    """Return a process's descriptors, up to 65536. OSError without permission."""
    with os.scandir(fds) as entries:
        return sorted(int(entry.name) for entry in islice(entries, USER_LINKS_MAX))


def _page_links(fds: Path, numbers: Iterable[int]) -> Iterator[Path]:
    """Yield descriptors whose links are those of pages."""
    for number in numbers:
        link = fds / str(number)
        with contextlib.suppress(OSError):
            if str(link.readlink()) == _page.LINK:
                yield link


def _own_pid(proc: Path, pid: int) -> int:
    """Return the process's number in its own PID namespace."""
    values = status_field(pid, "NSpid", proc).split()
    return int(values[-1]) if values else pid


def _uid(proc: Path, pid: int) -> int:
    """Return the process's user, which may differ from its directory's owner; -1 after its end."""
    uids = status_field(pid, "Uid", proc).split()
    return int(uids[0]) if uids else -1


def _page_of(proc: Path, pid: int, fd: int, status: os.stat_result) -> Page:
    comm = printable(status_field(pid, "Name", proc))
    return Page(fd, pid, _uid(proc, pid), comm, status.st_ino, status.st_size)


class _Shares:
    """Limits the descriptors, pages and bytes of each user."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._used: Counter[tuple[int, str]] = Counter()
        self._reported: set[int] = set()

    def take(self, uid: int, pid: int, unit: str, count: int, most: int) -> int:
        """Return how much of `count` the user may have. Report a user once if that is less."""
        if uid == 0:
            return count
        share = min(count, most - self._used[uid, unit])
        if share < count and uid not in self._reported:
            self._reported.add(uid)
            why = f"user {uid} {_MORE[unit]} than the limit: the others are left out"
            self._found.bad.append((pid, PageError(why, errno.EDQUOT)))
        if share < count and unit != "descriptors":  # part of a page is useless
            share = 0
        self._used[uid, unit] += share
        return share


class _Search:
    """A search through all processes, and its result so far."""

    def __init__(self, proc: Path) -> None:
        self.found = Found()
        self.by_inode: dict[int, Page] = {}
        self._proc = proc
        self._bad: set[int] = set()
        self._shares = _Shares(self.found)

    def examine(self, pid: int) -> None:
        try:
            numbers = _numbers(self._proc / str(pid) / "fd")
        except OSError as error:
            self.found.hidden_processes += error.errno in (errno.EACCES, errno.EPERM)
            return
        uid, count = _uid(self._proc, pid), PROCESS_LINKS + len(numbers)
        share = self._shares.take(uid, pid, "descriptors", count, USER_LINKS_MAX)
        count = max(0, share - PROCESS_LINKS)
        links = list(_page_links(self._proc / str(pid) / "fd", numbers[:count]))
        is_own = pid == os.getpid()
        opened = {page.fd for page in self.by_inode.values()} if is_own else set()
        for link in links:
            if len(self.by_inode) >= PAGES_MAX:
                return
            if int(link.name) in opened:
                # this search opened it; another process owns the page
                continue
            with contextlib.suppress(OSError):
                if not self._take(pid, link):
                    return

    def _take(self, pid: int, link: Path) -> bool:
        """Return False if the process's user has reached the limit."""
        fd, status = memfd.open_link(link, os.O_RDONLY)
        inode = status.st_ino
        if inode in self._bad:
            os.close(fd)
            return True
        page = _page_of(self._proc, pid, fd, status)
        if inode not in self.by_inode and not self._admit(page):
            page.close()
            return False
        try:
            owner, page.job = identity(fd)
        except PageError as error:
            page.close()
            self._bad.add(inode)
            # ENODATA: the page of a lease whose job has not published yet.
            if error.errno != errno.ENODATA:
                self.found.bad.append((pid, error))
            return True
        self._keep(page, inode, owner.pid)
        return True

    def _admit(self, page: Page) -> bool:
        # Bytes first: a page that exceeds their limit does not count as a page.
        limits = (("bytes", page.size, USER_BYTES_MAX), ("pages", 1, USER_PAGES_MAX))
        return all(
            self._shares.take(page.uid, page.pid, unit, count, most) == count
            for unit, count, most in limits
        )

    def _keep(self, page: Page, inode: int, claimed: int) -> None:
        """Assign a page that several processes hold to the one that its identity names."""
        before = self.by_inode.get(inode)
        if before is not None and (
            _own_pid(self._proc, before.pid) == claimed or _own_pid(self._proc, page.pid) != claimed
        ):
            page.close()
            return
        if before is not None:
            before.close()
        self.by_inode[inode] = page


def find(proc: Path = PROC) -> Found:
    """Find the pages of all processes that this process may examine."""
    search = _Search(proc)
    for pid in _processes(proc):
        search.examine(pid)
    search.found.pages = [page for page in search.by_inode.values() if not page.job]
    search.found.jobs = [page for page in search.by_inode.values() if page.job]
    return search.found
