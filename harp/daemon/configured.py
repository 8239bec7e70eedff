# SPDX-License-Identifier: Apache-2.0
"""Loads harp.toml for harpd, and prepares NICs with harp.nicprep."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import asdict
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from harp import config, nicprep
from harp.daemon.daemon import Documents, Metrics, Preparation
from harp.daemon.ports import Block
from harp.daemon.settings import (
    XDP_GENERIC,
    XDP_NATIVE,
    XDP_NATIVE_OR_NONE,
    NicSettings,
    PortSettings,
    Settings,
)
from harp.errors import HarpError

log = logging.getLogger("harpd")
_XDP_MODES = {"auto": XDP_NATIVE_OR_NONE, "generic": XDP_GENERIC, "native": XDP_NATIVE}


def _nic(nic: config.NicConfig) -> NicSettings:
    return NicSettings(
        ifname=nic.ifname,
        lease_queues=frozenset(nic.lease_queues),
        ports=Block(*nic.ports),
        xdp_mode=_XDP_MODES[nic.xdp_mode],
        rss=nic.rss,
        allow_sources=tuple(map(ip_network, nic.allow_sources)),
    )


def _port(port: config.DpdkConfig) -> PortSettings:
    return PortSettings(port.port, port.device, port.text, port.queues)


def settings(found: config.Config) -> Settings:
    """Convert the whole configuration."""
    daemon, metrics = found.daemon, found.metrics
    page_flows = found["HARP_PAGE_FLOWS"]
    assert isinstance(page_flows, int)
    return Settings(
        run_dir=Path(daemon.run_dir),
        socket=Path(daemon.socket) if daemon.socket else None,
        socket_group=daemon.socket_group,
        users=daemon.users,
        groups=daemon.groups,
        allow_net_admin_containers=daemon.allow_net_admin_containers,
        leases_per_uid=daemon.leases_per_uid,
        connections_per_uid=daemon.connections_per_uid,
        ports_per_instance=daemon.ports_per_instance,
        port_rest_s=daemon.port_rest_ms / 1000,
        frames_max=daemon.frames_max,
        page_flows=page_flows,
        prepare=daemon.prepare,
        log_level=daemon.log_level,
        metrics_address=metrics.address,
        metrics_port=metrics.port,
        job=found.job_settings(),
        nics=tuple(_nic(nic) for nic in found.nics),
        dpdk=tuple(_port(port) for port in found.dpdk),
        source=found,
    )


def read(path: Path | None) -> Settings:
    """Load the file (None: HARP_CONFIG, or the default) and harpd's own environment;
    ConfigError.
    """
    found = config.load(path, readers=config.Reader.DAEMON)
    for warning in found.warnings:
        log.warning("%s", warning)
    return settings(found)


def read_again(path: Path | None) -> Callable[[Settings], Settings]:
    """Reload for SIGHUP: apply what may change live; log what needs a restart."""

    def again(old: Settings) -> Settings:
        new = config.load(path, readers=config.Reader.DAEMON)
        difference = config.reload(old.source, new)
        for change in difference.live:
            log.info("now %s", change)
        for change in difference.restart:
            log.warning("%s: needs `harpctl restart`", change)
        return settings(difference.effective)

    return again


def start_metrics(settings: Settings, documents: Callable[[], Documents]) -> Metrics | None:
    """Start the Prometheus endpoint; None if harp.toml disables it. ExporterError."""
    if settings.metrics_port == 0:
        return None
    # prometheus_client takes a while to import.
    from harp.daemon import exporter, families

    return exporter.start(
        settings.metrics_address,
        settings.metrics_port,
        lambda: families.daemon_view(*documents()),
    )


class NicPreparation(Preparation):
    """harp.nicprep, with its results logged."""

    def __init__(self, host: nicprep.Host | None = None) -> None:
        self._host = host or nicprep.Host()

    @staticmethod
    def _undo(value: Any) -> nicprep.Undo:
        try:
            return nicprep.Undo.from_json(value)
        except HarpError as error:
            log.error("%s; what an earlier harpd changed stays as it is", error)
            return nicprep.Undo()

    @staticmethod
    def _tell(outcomes: list[nicprep.Outcome]) -> None:
        for outcome in outcomes:
            trouble = outcome.status not in ("done", "restored", "gone")
            log.log(logging.WARNING if trouble else logging.INFO, "%s", outcome.words)

    @staticmethod
    def _record(record: Callable[[Any], None]) -> Callable[[nicprep.Undo], None]:
        return lambda undo: record(undo.to_json() if undo.entries else None)

    def prepare(self, settings: Settings, undo: Any, record: Callable[[Any], None]) -> None:
        """Prepare the NICs as harp.toml asks."""
        found: config.Config = settings.source
        nics = [asdict(nic) for nic in found.nics]
        result = nicprep.prepare(
            [nicprep.nic_config(nic) for nic in nics],
            nicprep.host_config(asdict(found.daemon), nics),
            self._host,
            self._record(record),
            self._undo(undo),
        )
        self._tell(result.outcomes)

    def restore(self, undo: Any, record: Callable[[Any], None]) -> None:
        """Restore the NICs."""
        result = nicprep.restore(self._undo(undo), self._host, self._record(record))
        self._tell(result.outcomes)
        # A failure to write was logged; harpd must still be able to end.
        with contextlib.suppress(OSError):
            record(result.undo.to_json() if result.undo.entries else None)
