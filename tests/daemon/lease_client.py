# SPDX-License-Identifier: Apache-2.0
"""A client that leases instances, as the plugin does."""

from types import SimpleNamespace
from typing import Any

from harp import _host
from harp._host import Kind
from harp.daemon.client import DaemonClient
from harp.daemon.loop import close_all
from harp.daemon.messages import Leased, LeaseId, Request, pack
from harp.errors import HarpError


class LeaseClient(DaemonClient):
    """A connection after HELLO. Leases belong to the process and outlive the connection."""

    def lease(self, ifname: str, **request: Any) -> tuple[Leased, list[int]]:
        """Request an instance.

        Parameters
        ----------
        ifname
            The NIC.
        request
            queue, frame_count, copy_mode, label: see messages.Request.

        Returns
        -------
        tuple
            The lease, and its descriptors as in enum harp_lease_fd, which the caller owns.

        Raises
        ------
        RefusedByDaemonError
            harpd refuses, with the reason.
        """
        message, fds = self.ask(
            pack(Kind.LEASE, self.next_serial(), Request(ifname, **request)), Kind.LEASED
        )
        lease: Leased = message.body
        if len(fds) != _host.FDS:
            close_all(fds)
            raise HarpError(f"harpd at {self.path} gave {len(fds)} descriptors")
        return lease, fds

    def take(self, ifname: str, **request: Any) -> Leased:
        """Request an instance, and close its descriptors."""
        lease, fds = self.lease(ifname, **request)
        close_all(fds)
        return lease

    def lease_port(self, name: str, **request: Any) -> tuple[SimpleNamespace, list[int]]:
        """Request a DPDK port; the caller owns the descriptors, one statistics page per queue."""
        message, fds = self.ask(
            pack(Kind.LEASE, self.next_serial(), Request(name, **request)), Kind.PORT
        )
        port = SimpleNamespace(**vars(message.body), spec=message.text)
        if len(fds) != port.page_count:
            close_all(fds)
            raise HarpError(f"harpd at {self.path} gave {len(fds)} descriptors")
        return port, fds

    def release(self, lease_id: int) -> None:
        """Return an instance."""
        self.ask(pack(Kind.RELEASE, self.next_serial(), LeaseId(lease_id)), Kind.DONE)
