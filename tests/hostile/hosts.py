# SPDX-License-Identifier: Apache-2.0
"""Two hosts joined by a cable, which all hostile tests use."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import subprocess
from collections.abc import Iterator, Mapping

from actor import Actor, actors
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

    @contextlib.contextmanager
    def ranks(
        self,
        *paths: str,
        receiver: Mapping[str, str] | None = None,
        sender: Mapping[str, str] | None = None,
        **env: str,
    ) -> Iterator[tuple[Actor, ...]]:
        """Processes with the plugin, the first on host 0: one for each path.

        receiver, sender: more variables of the first and of the second one.
        """
        own = (receiver or {}, sender or {})
        made = [
            Actor(self.netns[host], self.env(path, **env, **own[host]))
            for host, path in enumerate(paths)
        ]
        with actors(*made):
            for rank in made:
                rank.call("load", path=str(self.plugin))
            yield tuple(made)

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
