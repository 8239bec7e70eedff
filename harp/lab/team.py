# SPDX-License-Identifier: Apache-2.0
"""Processes that run together on test hosts. A team fails with its first process that fails."""

import contextlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from harp.closing import Closing, deferring
from harp.errors import HarpError
from harp.lab import Host, cpus
from harp.lab.netns import popen


def job_environment(
    variables: Mapping[str, str],
    *,
    foreign: tuple[str, ...] = ("NCCL_",),
    kept: Collection[str] = (),
) -> dict[str, str]:
    """Return this process's environment with these variables. Other variables whose names begin
    with one of `foreign` are removed, except those in `kept`.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(foreign) or name in kept
    }
    return inherited | dict(variables)


class Team(Closing):
    """Processes, each with a file for its stderr. close() ends them.

    name: of the program, for error messages. label: their prefix, such as "rank {}: ", with the
    number of the process. error: text of the lines that are errors, of which the first one is
    reported; "": the last line is reported.
    """

    def __init__(self, name: str, label: str = "", error: str = "") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=f"{name}-")
        self._name, self._label, self._error = name, label, error
        self.folder = Path(self._folder.name)
        self.processes: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []

    def start(
        self,
        host: Host | None,
        command: Sequence[str | Path],
        *,
        cpu: int | None = None,
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Start a process on a host, or (None) in this network namespace.

        cpu: number of a processor among those that may be used, modulo their count; None: all.
        options: those of Namespace.popen(), or of Popen.
        """
        usable = cpus()
        core = None if cpu is None else usable[cpu % len(usable)]
        with (self.folder / f"stderr{len(self.processes)}").open("w") as stderr, deferring():
            if host is not None:
                process = host.popen(command, cpu=core, stderr=stderr, **options)
            else:
                pin = [] if core is None else ["taskset", "-c", str(core)]
                process = popen([*pin, *map(str, command)], stderr=stderr, **options)
            self.processes.append(process)
        return process

    def ready(self) -> str:
        """Wait until the newest process prints "ready"; return the rest of that line."""
        stdout = self.processes[-1].stdout
        assert stdout is not None
        status, _, rest = stdout.readline().strip().partition(" ")
        if status != "ready":
            self.processes[-1].wait()
            raise self.failure(len(self.processes) - 1)
        return rest

    def follow(self, handle: Callable[[str | None], None]) -> None:
        """Call handle(), in a thread, with each line that the newest process prints, then None."""
        stdout = self.processes[-1].stdout
        assert stdout is not None

        def read() -> None:
            # The pipe was closed, or a killed process left an incomplete line.
            with contextlib.suppress(ValueError):
                for line in stdout:
                    handle(line)
            handle(None)

        self._readers.append(threading.Thread(target=read, daemon=True))
        self._readers[-1].start()

    def log(self, index: int) -> list[str]:
        text = (self.folder / f"stderr{index}").read_text(errors="replace")
        return text.strip().splitlines()

    def failure(self, index: int, texts: Mapping[int, str] | None = None) -> HarpError:
        """Return the error of a process that failed. texts: meanings of exit statuses."""
        lines, status = self.log(index), self.processes[index].returncode
        errors = [line for line in lines if self._error in line] if self._error else lines[-1:]
        text = errors[0] if errors else (texts or {}).get(status, f"exit status {status}")
        label = self._label.format(index)
        return HarpError(f"{label}{text}" if label or errors else f"{self._name} {index}: {text}")

    def finish(
        self,
        limit_s: float | None = None,
        *,
        good: Collection[int] = (0,),
        late: Collection[int] = (),
        texts: Mapping[int, str] | None = None,
        remedy: str = "",
    ) -> list[str]:
        """Wait for all processes and return what each printed. HarpError after the first failure,
        because others may wait for that process, or after limit_s.

        good: exit statuses of success. late: those of processes that failed because of another one,
        whose error is preferred. texts: meanings of exit statuses, for processes that wrote nothing
        to stderr. remedy: what to do after limit_s.
        """
        lost = None  # the error of a process that failed because of another one
        with ThreadPoolExecutor(len(self.processes)) as pool:
            ends = [pool.submit(process.communicate) for process in self.processes]
            try:
                for end in as_completed(ends, limit_s):
                    index = ends.index(end)
                    status = self.processes[index].returncode
                    if status in good:
                        continue
                    if status not in late:
                        raise self.failure(index, texts)
                    lost = lost or self.failure(index, texts)
            except TimeoutError:
                timeout = HarpError(f"{self._name}: not done after {limit_s:.0f} s{remedy}")
                raise lost or timeout from None
            finally:
                self._kill()  # the threads end with the processes
        if lost:
            raise lost
        return [end.result()[0] for end in ends]

    def _kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()

    def close(self) -> None:
        self._kill()
        for process in self.processes:
            process.wait()
        for reader in self._readers:
            reader.join()
        for process in self.processes:
            if process.stdout is not None:
                process.stdout.close()
        self._folder.cleanup()
