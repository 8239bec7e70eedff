# SPDX-License-Identifier: Apache-2.0
"""harpd's start, restart and end.

Theory of operation

start() orders its steps by the cost of a failure: the directory and its lock, the state of the
previous harpd, the bpffs, the NICs' preparation, their XDP programs (adopted if pinned, else
attached), the leases of living processes, and last the socket.

harpd ends in one of four ways:

- `harpctl stop` removes everything. harpd refuses it while leases exist, unless it is forced.
- SIGTERM does the same if there are no leases. Otherwise pins and state stay, jobs continue, and
  the next harpd adopts their leases (systemctl restart).
- `harpctl restart`, or SIGHUP, executes the process again, for a new version or harp.toml. Lock and
  listening socket stay open, so that a job's request waits instead of being refused.
- SIGKILL is like SIGTERM with leases: the pins hold the XDP program, the kernel removes the sockets
  of dead jobs from its map, and all other packets pass.
"""

import contextlib
import fcntl
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from harp import __version__
from harp.daemon import netlink, notify, peer, queries, rundir, takeover
from harp.daemon.frames import Frames
from harp.daemon.kernel import Kernel
from harp.daemon.leasing import Leasing
from harp.daemon.loop import Loop
from harp.daemon.metrics import Metrics
from harp.daemon.nics import Nics
from harp.daemon.server import BACKLOG, Server
from harp.daemon.session import Session
from harp.daemon.settings import Settings
from harp.daemon.state import State, StateFile
from harp.daemon.table import LeaseTable
from harp.daemon.takeover import Takeover
from harp.daemon.watching import Watching
from harp.errors import HarpError
from harp.nicprep import Preparation, Undo

log = logging.getLogger("harpd")
SYNC_EVERY_S = 30.0
STATE_AGAIN_S = 5.0  # interval of retries while the state can't be written
# Environment variables with the descriptors that a restart keeps: lock, listening socket and
# clients ("+": it sent HELLO), and the frame memory of leases.
INHERITED = "HARPD_INHERITED_FDS"
INHERITED_FRAMES = "HARPD_INHERITED_FRAMES"


class Daemon:
    """One harpd. settings: those of the start; load: reads harp.toml again. HarpError."""

    def __init__(
        self,
        settings: Settings,
        kernel: Kernel,
        load: Callable[[], Settings],
        preparation: Preparation | None = None,
    ) -> None:
        self.settings, self._kernel, self._load = settings, kernel, load
        self._preparation = preparation or Preparation()
        self._metrics: Metrics | None = None
        self._before: State | None = None  # until all leases are adopted
        self._takeover = Takeover(State())
        self.since_s = time.time()
        self.loop = Loop()
        self.table = LeaseTable(settings.leases_per_uid, lambda: secrets.randbits(63))
        self._state_file = StateFile(settings.run_dir)
        self._state_broken = ""
        self._undo = Undo()
        self._lock = -1
        self._clients: list[tuple[int, bool]] = []
        self._frames: list[int] = []
        self._listening: socket.socket | None = None
        self._monitor: netlink.NetworkMonitor | None = None
        self._server: Server | None = None
        self._started = False
        self._restart = self._remove = False
        self._pinnable = True

    # ---- start ----

    def start(self) -> None:
        """Start, and listen. HarpError after a failure, which undoes the start."""
        settings = self.settings
        try:
            rundir.prepare(settings.run_dir)
            inherited = _inherited()
            inherited = inherited if len(inherited) >= 2 else []
            self._lock = inherited[0][0] if inherited else rundir.lock(settings.run_dir)
            self._clients = inherited[2:]
            self._frames = [fd for fd, _ in _inherited(INHERITED_FRAMES)] if inherited else []
            self._state_file.remove_temporary()
            before = self._before = takeover.read_state(self._state_file)
            if inherited:
                self._listening = socket.socket(fileno=inherited[1][0])
            else:
                self._listening, removed = rundir.listen(settings, BACKLOG)
                if removed:
                    log.warning("%s", removed)
            self._mount()
            self._prepare(before)
            self._take_over(before)
        except BaseException:
            self._abandon()
            raise
        self._serve()

    def _mount(self) -> None:
        pins = self.settings.pins_dir
        try:
            rundir.mount_bpffs(pins)
        except OSError as error:
            self._pinnable = False
            log.warning(
                "no BPF file system at %s (%s): jobs will lose their connections when harpd "
                "ends; it needs CAP_SYS_ADMIN, or run `harpd --mount` first",
                pins, error.strerror,
            )  # fmt: skip

    def _prepare(self, before: State) -> None:
        self._undo = before.undo
        self._prepare_nics()
        if not self.settings.prepare:
            self._preparation.restore(self._undo, self._record_undo)

    def _prepare_nics(self) -> None:
        if self.settings.prepare:
            nics, huge_pages = self.settings.nics, self.settings.huge_pages
            self._preparation.prepare(nics, huge_pages, self._undo, self._record_undo)

    def _record_undo(self, undo: Undo) -> None:
        """Write the list of changes before and after each one; OSError if it can't be written."""
        self._undo = undo
        self._state_file.write(self._state())

    def _take_over(self, before: State) -> None:
        self.nics = Nics(self.settings, self._kernel, self.table, self.save, self._pinnable)
        self.leasing = Leasing(
            self.settings, self.loop, self._kernel, self.table, self.nics, self.save,
            Frames(self._frames),
        )  # fmt: skip
        if self.leasing.access.unknown:
            log.info(
                "harp.toml allows leases to %s, which this host does not have",
                ", ".join(self.leasing.access.unknown),
            )
        self._monitor = netlink.NetworkMonitor(netlink.MONITOR_GROUPS)
        self._takeover = Takeover(before)
        self.nics.inherit(before.nics, self._takeover.users)
        self.nics.sync()
        self._takeover.continue_quarantines(self.leasing, self.settings.port_rest_s)
        self._takeover.adopt(self.leasing, self.settings.port_rest_s)
        if self._pinnable:
            takeover.clean_pins(self.settings, self._kernel, self.leasing)

    def _serve(self) -> None:
        assert self._listening is not None
        assert self._monitor is not None
        self._watching = Watching(self.loop, self._kernel, self.leasing)
        session = Session(self, self._watching)
        self._server = Server(
            self.loop, self._listening, session, self.settings.connections_per_uid
        )
        while self._clients:
            self._server.take_over(*self._clients.pop())
        self.loop.add_reader(self._monitor, self._network_changed)
        self.loop.every(SYNC_EVERY_S, self.nics.sync)
        self.loop.every(STATE_AGAIN_S, self._save_again)
        self.nics.prepare_with(self._prepare_nics)
        if self.settings.metrics.port != 0:
            self._metrics = Metrics(self.loop, self.settings.metrics, self._server)
        self._before = None
        self.save()
        self._started = True
        log.info("harpd %s serves on %s", __version__, self.settings.socket_path)

    def _network_changed(self) -> None:
        assert self._monitor is not None
        try:
            changes = self._monitor.read()
        except OSError as error:
            log.error(
                "monitoring links and addresses: %s; harpd reads them every %.0f s until a restart",
                error.strerror, SYNC_EVERY_S,
            )  # fmt: skip
            self.loop.remove_reader(self._monitor)
            self._monitor.close()
            return
        if changes.interfaces or changes.lost:
            self.nics.sync()

    # ---- state ----

    def _state(self) -> State:
        now_s, wall_s = self.loop.time(), time.time()
        me, ticks = os.getpid(), peer.start_ticks(os.getpid())
        if self._before is not None:
            # During the start: after a crash the next harpd must know all leases.
            return replace(
                self._before, pid=me, start_ticks=ticks, version=__version__, undo=self._undo
            )
        return State(
            pid=me,
            start_ticks=ticks,
            version=__version__,
            nics=self.nics.states(),
            leases=[lease for lease in self.table.leases.values() if lease.active]
            + self._takeover.stranded,
            rests={
                ifname: [
                    (block.first, block.last, wall_s + until - now_s)
                    for block, (until, _) in table.ports.quarantined.items()
                ]
                for ifname, table in self.table.nics.items()
            },
            undo=self._undo,
        )

    def save(self) -> None:
        """Write the state; log a failure, and its end, once."""
        try:
            self._state_file.write(self._state())
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self._state_broken:
                log.error(
                    "%s can't be written: %s; harpd continues, but the next harpd would not "
                    "know the leases granted now; free disk space",
                    self._state_file.path, reason,
                )  # fmt: skip
            self._state_broken = reason
            return
        if self._state_broken:
            log.info("%s can be written again", self._state_file.path)
        self._state_broken = ""

    def _save_again(self) -> None:
        """Retry a failed write, which else waits for the next change of a lease."""
        if self._state_broken:
            self.save()

    # ---- commands ----

    def status(self) -> dict[str, Any]:
        extra = {
            "socket": str(self.settings.socket_path),
            "run_dir": str(self.settings.run_dir),
            "connections": len(self._server.clients) if self._server else 0,
            "state": self._state_broken or "good",
            "pinned": self._pinnable,
            "metrics": self._metrics.url if self._metrics is not None else "",
        }
        return queries.status(self.leasing, self.since_s, extra)

    # ---- running and ending ----

    def _summary(self) -> str:
        count = len(self.table.leases)
        nics, ports = len(self.table.nics), len(self.leasing.ports.all)
        devices = f"{nics} NIC{'' if nics == 1 else 's'}"
        if ports:
            devices += f" and {ports} DPDK port{'' if ports == 1 else 's'}"
        return f"{count} lease{'' if count == 1 else 's'} on {devices}"

    def run(self) -> None:
        """Serve until the end is requested; then return, or execute harpd again."""
        self.loop.on_signal(signal.SIGTERM, self._terminated)
        self.loop.on_signal(signal.SIGINT, self._terminated)
        self.loop.on_signal(signal.SIGHUP, self._hung_up)
        period_s = notify.watchdog_period_s()
        if period_s is not None:
            self.loop.every(period_s, notify.alive)
        notify.ready(self._summary())
        self.serve()

    def serve(self) -> None:
        """run() without signals and notifications."""
        self.loop.run_forever()
        self.close()

    def _hung_up(self) -> None:
        """Handle SIGHUP: apply the changes of harp.toml by a restart."""
        problem = self.restart_problem()
        if problem:
            log.error("%s; harpd continues unchanged", problem)
            return
        self._end(remove=False, restart=True)

    def _terminated(self) -> None:
        if self.table.leases:
            log.info("ending; %s, and the jobs continue", self._summary())
        self._end(remove=not self.has_jobs)

    @property
    def has_jobs(self) -> bool:
        """Tell whether jobs would lose their connections if harpd removed everything."""
        return bool(self.table.leases or self._takeover.stranded)

    def end_soon(self, remove: bool, restart: bool = False) -> None:
        """End when the current answer is sent; remove everything, or execute harpd again."""
        self.loop.call_soon(self._end, remove, restart)

    def restart_problem(self) -> str:
        """Return why a restart would fail or lose leases now; empty: it can restart."""
        self._save_again()
        if self._state_broken and self.has_jobs:
            return (
                f"{self._state_file.path} can't be written ({self._state_broken}): a restart would "
                f"lose {self._summary()}; free disk space"
            )
        try:
            new = self._load()
        except HarpError as error:
            return str(error).splitlines()[0]
        for name in ("run_dir", "socket_path"):
            if getattr(new, name) != getattr(self.settings, name):
                return f"{name} has changed: that needs `harpctl stop` and `harpctl start`"
        return ""

    def _end(self, remove: bool, restart: bool = False) -> None:
        if restart and self.leasing.closing:
            return  # SIGTERM, or `harpctl stop`, ends a harpd that is asked to restart, too
        self._restart = restart
        notify.reloading() if self._restart else notify.stopping()
        self.leasing.closing = True
        self._remove = remove
        self.loop.stop()

    def close(self) -> None:
        """Remove everything, or only what no job needs. Does nothing after a failed start()."""
        if not self._started:
            return
        self._started = False
        if self._metrics is not None:
            self._metrics.close()
        if self._server is not None:
            self._server.end_reading()
        self.loop.finish_work()  # this refuses leases that are not granted yet
        if self._server is not None:
            self._clients = self._server.hand_over() if self._restart else []
            self._server.close()
            self._watching.close()
        if self._remove:
            self._remove_all()
        else:
            self.save()
        self._frames = [os.dup(fd) for fd in self.leasing.frames.fds] if self._restart else []
        self.leasing.close()
        self.nics.close(self._remove)
        self.loop.close()
        if self._monitor is not None:
            self._monitor.close()
        if self._restart:
            self._execute_again()
        self._close_socket()
        if self._remove:
            rundir.unmount(self.settings.pins_dir)
            if not self._undo:
                _remove(self._state_file.path)
        os.close(self._lock)
        log.info("harpd has ended")

    def _remove_all(self) -> None:
        for lease in list(self.table.leases.values()):
            if lease.active:
                self.leasing.end(lease, "harpd was stopped by force")
        self._preparation.restore(self._undo, self._record_undo)
        self.save()

    def _close_socket(self) -> None:
        if self._listening is not None:
            _remove(self.settings.socket_path)
            self._listening.close()

    def _abandon(self) -> None:
        if hasattr(self, "nics"):
            self.nics.close(remove=self._before is not None and not self._before.leases)
        if self._monitor is not None:
            self._monitor.close()
        self.loop.finish_work()
        if hasattr(self, "leasing"):
            self.leasing.close()
        self.loop.close()
        self._close_socket()
        if self._lock >= 0:
            os.close(self._lock)

    def _execute_again(self) -> None:
        assert self._listening is not None
        fds = [(self._lock, False), (self._listening.detach(), False), *self._clients]
        _pass_on(INHERITED, fds)
        _pass_on(INHERITED_FRAMES, [(fd, False) for fd in self._frames])
        log.info("executing harpd again")
        for handler in logging.getLogger().handlers:
            with contextlib.suppress(OSError):  # a full disk must not stop the restart
                handler.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _remove(path: Path) -> None:
    """Remove one of harpd's files at the end; a failure is only logged."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s can't be removed: %s", path, error.strerror)


def _pass_on(name: str, fds: list[tuple[int, bool]]) -> None:
    """Pass descriptors to _inherited() of the next harpd, in an environment variable."""
    for fd, _ in fds:
        os.set_inheritable(fd, True)
    os.environ[name] = ",".join(f"{fd}{'+' if sent_hello else '-'}" for fd, sent_hello in fds)


def _inherited(name: str = INHERITED) -> list[tuple[int, bool]]:
    """Return the descriptors that the previous harpd left open; empty at an ordinary start."""
    text = os.environ.pop(name, "")
    try:
        fds = [(int(item[:-1]), item[-1] == "+") for item in text.split(",")] if text else []
        for fd, _ in fds:
            fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    except (ValueError, OSError):
        return []
    return fds
