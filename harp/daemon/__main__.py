# SPDX-License-Identifier: Apache-2.0
"""The command `harpd`, also `python -m harp.daemon`: the daemon in the foreground."""

import contextlib
import logging
import logging.handlers
import os
import resource
import select
import signal
import sys
from io import TextIOWrapper
from pathlib import Path

import click

from harp import __version__, files
from harp.errors import Exit, HarpError
from harp.standard import open_standard

log = logging.getLogger("harpd")
LOG_BYTES_MAX = 1 << 20
DESCRIPTORS = 65536
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)  # handled by Daemon.run()
# sd-daemon(3): prefixes that give lines their level in the journal.
_JOURNAL = {"DEBUG": "<7>", "INFO": "<6>", "WARNING": "<4>", "ERROR": "<3>", "CRITICAL": "<2>"}


class _JournalFormatter(logging.Formatter):
    """Formats a line without time and program name, which the journal adds."""

    def format(self, record: logging.LogRecord) -> str:
        return _JOURNAL.get(record.levelname, "") + super().format(record)


class _StderrHandler(logging.Handler):
    """Writes to stderr without waiting for its reader, because that would stop the event loop. A
    line that does not fit into the pipe or socket is dropped. The next line that fits has the
    count.
    """

    def __init__(self) -> None:
        super().__init__()
        self._dropped = 0
        self._poll = select.poll()
        self._poll.register(sys.stderr.fileno(), select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._dropped and self._write(self._notice()):
                self._dropped = 0
            if self._dropped or not self._write(record):
                self._dropped += 1
        except Exception:
            self.handleError(record)

    def _notice(self) -> logging.LogRecord:
        text = f"stderr: {self._dropped} lines dropped: its reader had stopped"
        return logging.makeLogRecord(
            {"msg": text, "levelno": logging.WARNING, "levelname": "WARNING"}
        )

    def _write(self, record: logging.LogRecord) -> bool:
        data = f"{self.format(record)}\n".encode(errors="backslashreplace")
        while data:
            # pipe(7): a pipe that is ready takes PIPE_BUF bytes at once.
            if not self._poll.poll(0):
                return False
            data = data[os.write(sys.stderr.fileno(), data[: select.PIPE_BUF]) :]
        return True


class _BoundedFile(logging.handlers.RotatingFileHandler):
    """A log file with one predecessor, which bounds the space on the disk."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            path,
            maxBytes=LOG_BYTES_MAX,
            backupCount=1,
            encoding="utf-8",
            errors="backslashreplace",  # a path may have any bytes
        )

    def _open(self) -> TextIOWrapper:
        fd = files.open_output(Path(self.baseFilename), os.O_APPEND)
        return os.fdopen(fd, "a", encoding=self.encoding, errors=self.errors)


def _log_to(path: Path | None) -> None:
    handler: logging.Handler
    if path is not None:
        try:
            handler = _BoundedFile(path)
        except OSError as error:
            raise HarpError(f"{path}: {error.strerror}; choose another file with --log") from error
        text = "%(asctime)s harpd: %(levelname)s: %(message)s"
        handler.setFormatter(logging.Formatter(text))
    else:
        handler = _StderrHandler()
        if "JOURNAL_STREAM" in os.environ:
            handler.setFormatter(_JournalFormatter("%(message)s"))
        else:
            handler.setFormatter(logging.Formatter("harpd: %(levelname)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    # A full disk must not cause a traceback for every line.
    logging.raiseExceptions = False


def _mount(config: Path | None) -> None:
    from harp.daemon import rundir, settings

    daemon = settings.read(config)
    rundir.prepare(daemon.run_dir)
    try:
        rundir.mount_bpffs(daemon.pins_dir)
    except OSError as error:
        raise HarpError(
            f"mounting in {daemon.run_dir}: {error.strerror}; it needs CAP_SYS_ADMIN"
        ) from error


def _serve(config: Path | None) -> None:
    from harp.daemon.daemon import Daemon
    from harp.daemon.kernel import Kernel
    from harp.daemon.limits import DESCRIPTORS_MIN
    from harp.daemon.settings import read

    settings = read(config)
    log.setLevel(settings.log_level.upper())
    if os.geteuid() != 0:
        log.warning("not root: binding queues and attaching XDP will need capabilities")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS_MIN:
        raise HarpError(
            f"harpd may open {hard} files and needs {DESCRIPTORS_MIN}: raise the limit "
            "(ulimit -Hn, LimitNOFILE=)"
        )
    soft = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if not settings.nics and not settings.dpdk:
        log.warning("harp.toml has no [[nic]] and no [[dpdk]]: there is nothing to lease")
    daemon = Daemon(settings, Kernel(), lambda: read(config))
    daemon.start()
    daemon.run()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="harpd")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="harp.toml (default: HARP_CONFIG, else /etc/harp/harp.toml).",
)
@click.option(
    "--log",
    "log_file",
    type=click.Path(path_type=Path),
    help="Log to this file, whose size is limited, instead of stderr.",
)
@click.option(
    "--mount",
    is_flag=True,
    help="Only mount the BPF file system in run_dir, and exit: for a service whose mount "
    "namespace ends with it.",
)
def harpd(config: Path | None, log_file: Path | None, mount: bool) -> None:
    """Leases queues of this host's NICs to jobs without privileges.

    harpd serves in the foreground until SIGTERM; SIGHUP restarts it with a changed harp.toml.
    `harpctl start` runs it in the background.

    \b
    harpd --config /etc/harp/harp.toml
    """
    # A restart must find the same files, and harpd's working directory must not keep a mount busy.
    try:
        config = config.absolute() if config else None
        log_file = log_file.absolute() if log_file else None
    except OSError as error:
        raise HarpError(f"the current directory: {error.strerror}") from error
    _log_to(log_file)
    log.setLevel(logging.INFO)
    try:
        if mount:
            _mount(config)
        else:
            _serve(config)
    except HarpError:
        raise
    except OSError as error:
        raise HarpError(f"{error.filename or 'harpd'}: {error.strerror or error}") from error


def main() -> None:
    """Entry point: an error is one line and an exit code, never a traceback."""
    open_standard()
    # Signals do not interrupt the start: the loop handles them when it runs. Threads never do.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        status = harpd.main(standalone_mode=False)
        sys.exit(status if isinstance(status, int) else Exit.OK)
    except HarpError as error:
        # The parent reads stderr; a log file gets the line, too.
        handlers = logging.getLogger().handlers
        if handlers:
            log.error("%s", error)
        if not handlers or isinstance(handlers[0], _BoundedFile):
            with contextlib.suppress(OSError):  # its reader has ended
                sys.stderr.write(f"harpd: {error}\n")
                sys.stderr.flush()
        sys.exit(error.code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(Exit.INTERRUPTED)
    except Exception as error:
        log.error("internal error: %s: %s; please report it", type(error).__name__, error)
        log.debug("where", exc_info=True)
        sys.exit(Exit.FAILURE)


if __name__ == "__main__":
    main()
