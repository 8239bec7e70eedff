# SPDX-License-Identifier: Apache-2.0
"""Two hosts joined by a cable, and many comms between ranks."""

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
        """A job's variables. Without the size limit, "auto" does not use AF_XDP on veth."""
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
        """Starts a process with the plugin per path, the first one on host 0.

        receiver, sender: more variables of the first and the second process.
        """
        extra = (receiver or {}, sender or {})
        processes = [
            Actor(self.netns[host], self.env(path, **env, **extra[host]))
            for host, path in enumerate(paths)
        ]
        with actors(*processes):
            for rank in processes:
                rank.load()
            yield tuple(processes)

    def ip(self, host: int, *arguments: str) -> None:
        """Runs iproute2 for that host."""
        subprocess.run(["ip", "-n", self.netns[host], *arguments], check=True)

    @contextlib.contextmanager
    def inside(self, host: int) -> Iterator[None]:
        """Sockets that are created in this context belong to that host."""
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
    """`count` comms per (sender, receiver) pair of ranks. The constructor starts to connect."""

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

    def wait_open(self) -> None:
        self.comms = [rank.result() for rank in self.ranks]

    def exchange(self, size: int) -> None:
        """Transfers a message over each comm concurrently."""
        for me, rank in enumerate(self.ranks):
            names: list[list[str]] = [[], []]
            for pair in self.pairs:
                if me in pair:
                    names[pair[1] == me] += [f"{pair}, {n}" for n in range(self.count)]
            sends, receives = (
                list(zip(comms, ours, strict=True))
                for comms, ours in zip(self.comms[me], names, strict=True)
            )
            rank.start("exchange", sends=sends, receives=receives, size=size, timeout_s=200)
        for me, rank in enumerate(self.ranks):
            assert rank.result() == self.count * sum(me in pair for pair in self.pairs)

    def close(self) -> None:
        for me, rank in enumerate(self.ranks):
            for name, comms in zip(("close_send", "close_recv"), self.comms[me], strict=True):
                rank.call("for_each", name=name, values=comms)
            rank.call("for_each", name="close_listen", values=self._listens(me))
