# SPDX-License-Identifier: Apache-2.0
"""Two hosts joined by a cable, which all hostile tests use, and many comms between ranks."""

import contextlib
import dataclasses
import os
import pathlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence

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
                rank.load()
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


class Comms:
    """`count` comms for each pair of ranks, (sender, receiver): begun, open, closed."""

    def __init__(
        self, ranks: Sequence[Actor], pairs: Sequence[tuple[int, int]], count: int
    ) -> None:
        self.ranks, self.pairs, self.count = ranks, pairs, count
        self.listens = {(a, b): ranks[b].call("listen_many", count=count) for a, b in pairs}
        for me, rank in enumerate(ranks):
            handles = [handle for a, b in pairs if a == me for handle, _ in self.listens[a, b]]
            rank.start("join", handles=handles, listens=self._listens(me), timeout_s=200)

    def _listens(self, me: int) -> list[int]:
        return [listen for a, b in self.pairs if b == me for _, listen in self.listens[a, b]]

    def come(self) -> None:
        self.comms = [rank.result() for rank in self.ranks]

    def cross(self, size: int) -> None:
        """A message over each of them, at once."""
        for me, rank in enumerate(self.ranks):
            names: list[list[str]] = [[], []]
            for pair in self.pairs:
                if me in pair:
                    names[pair[1] == me] += [f"{pair}, {n}" for n in range(self.count)]
            sends, receives = (
                list(zip(comms, ours, strict=True))
                for comms, ours in zip(self.comms[me], names, strict=True)
            )
            rank.start("cross", sends=sends, receives=receives, size=size, timeout_s=200)
        for me, rank in enumerate(self.ranks):
            assert rank.result() == self.count * sum(me in pair for pair in self.pairs)

    def close(self) -> None:
        for me, rank in enumerate(self.ranks):
            for name, comms in zip(("close_send", "close_recv"), self.comms[me], strict=True):
                rank.call("each", name=name, values=comms)
            rank.call("each", name="close_listen", values=self._listens(me))
