# SPDX-License-Identifier: Apache-2.0
"""Two hosts joined by a cable, which all hostile tests use."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
from collections.abc import Iterator

from pyroute2 import netns as pyroute2_netns


@dataclasses.dataclass
class Hosts:
    """Namespaces, interfaces and addresses, and the plugin under test."""

    netns: list[str]
    ifname: list[str]
    address: list[str]
    plugin: pathlib.Path

    def env(self, path: str, **more: str) -> dict[str, str]:
        """What a job would set. auto has lanes of both kinds, which on veth takes a limit."""
        return {
            "HARP_PATH": path,
            "HARP_XDP_BYTES_MAX": "3000",
            "NCCL_SOCKET_IFNAME": "=" + self.ifname[0],
            "NCCL_DEBUG": "INFO",
            **more,
        }

    def ip(self, host: int, *words: str) -> None:
        """iproute2's, on that host."""
        subprocess.run(["ip", "-n", self.netns[host], *words], check=True)

    @contextlib.contextmanager
    def inside(self, host: int) -> Iterator[None]:
        """Sockets made in here belong to that host."""
        home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            pyroute2_netns.setns(self.netns[host])
            try:
                yield
            finally:
                pyroute2_netns.setns(home)
        finally:
            os.close(home)

    @staticmethod
    def kill_later(stack: contextlib.ExitStack, pid: int) -> None:
        """The sleeping child of a killed process is nobody's any more: ours to end."""

        def kill() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

        stack.callback(kill)
