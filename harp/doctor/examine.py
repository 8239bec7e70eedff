# SPDX-License-Identifier: Apache-2.0
"""Runs the checks and combines their findings."""

from dataclasses import dataclass, replace
from typing import Any

from harp._host import DEVICE_DPDK
from harp.doctor import checks_dpdk, checks_host, checks_nic, checks_port
from harp.doctor.finding import HOST_NAMES, Finding, Severity, run
from harp.doctor.view import Link, View, candidates
from harp.errors import Exit, HarpError
from harp.nicprep import pci

# These modules register their checks on import.
CHECK_MODULES = (checks_host, checks_nic, checks_port, checks_dpdk)
PORT_PREFIX = "dpdk:"

_VERDICTS = (
    "HARP works on {ifname}",
    "HARP works on {ifname}, but something costs performance",
    "HARP can't use {ifname}; its lanes would be kernel TCP there",
)


@dataclass(frozen=True)
class Examination:
    """The findings about one interface."""

    ifname: str
    queue: int
    findings: list[Finding]

    @property
    def severity(self) -> Severity:
        return max((finding.severity for finding in self.findings), default=Severity.GOOD)

    @property
    def verdict(self) -> str:
        return _VERDICTS[self.severity].format(ifname=self.ifname)

    def to_json(self) -> dict[str, Any]:
        return {
            "interface": self.ifname,
            "queue": self.queue,
            "severity": self.severity.word,
            "verdict": self.verdict,
            "findings": [finding.to_json() for finding in self.findings],
        }


@dataclass(frozen=True)
class Report:
    """The findings about the host and every interface that HARP might use."""

    host: list[Finding]
    interfaces: list[Examination]  # and DPDK ports of harp.toml, as "dpdk:NAME"

    @property
    def severity(self) -> Severity:
        """Return the worst severity of the host, and of the best interface."""
        host = max((finding.severity for finding in self.host), default=Severity.GOOD)
        best = min((interface.severity for interface in self.interfaces), default=Severity.NO)
        return max(host, best)

    @property
    def verdict(self) -> str:
        if not self.interfaces:
            return "no interface is up and has an address that other hosts could reach"
        if any(finding.severity == Severity.NO for finding in self.host):
            return "HARP can't work on this host; its lanes would be kernel TCP"
        usable = [nic for nic in self.interfaces if nic.severity < Severity.NO]
        if not usable:
            return "HARP can use no interface of this host; it would use kernel TCP"
        names = ", ".join(nic.ifname for nic in usable)
        cost = ", but something costs performance" if self.severity else ""
        return f"HARP works on {names}{cost}"

    def to_json(self) -> dict[str, Any]:
        return {
            "severity": self.severity.word,
            "verdict": self.verdict,
            "host": [finding.to_json() for finding in self.host],
            "interfaces": [interface.to_json() for interface in self.interfaces],
        }


def examine(view: View, ifname: str, queue: int, take: bool = False) -> Examination:
    """Examine the host and one interface, DPDK port or PCI address; HarpError if it does not exist.
    take: the default route may use it.
    """
    if ifname.startswith(PORT_PREFIX) or pci.canonical(ifname):
        port = examine_port(view, ifname.removeprefix(PORT_PREFIX), take)
        return replace(port, findings=[*run("host", view), *port.findings])
    link = view.links.get(ifname)
    if link is None:
        existing = ", ".join(sorted(view.links))
        raise HarpError(f"no interface {ifname}; there are: {existing}", Exit.MISSING)
    of_host, of_link = _findings(view, link, queue)
    return Examination(ifname, queue, [*of_host, *run("host", view), *of_link])


def examine_port(view: View, text: str, take: bool = False) -> Examination:
    """Examine a DPDK port, by its specification after "dpdk:" or its name in harp.toml. It is
    opened only if the checks before that succeed, and if harpd has not leased it.
    """
    from harp._core import port_spec

    configured = {port.port: port.spec() for port in view.config.dpdk}
    text = configured.get(text, text)
    try:
        spec = port_spec(text)
        if take and not spec.take_default_route:
            text += ";take=default-route"
            spec = port_spec(text)
    except ValueError as error:
        raise HarpError(str(error), Exit.USAGE) from error
    findings = list(run("port", view, spec))
    leased = view.harpd.devices.get(spec.name) if text in configured.values() else None
    if leased is not None and leased.flags & DEVICE_DPDK and leased.queues_free == 0:
        findings += run("used", view, spec)
    elif all(finding.severity < Severity.NO for finding in findings):
        probe = view.open_port(text, str(view.config["HARP_DPDK_ARGS"]))
        findings += run("opened", view, spec, probe)
        if not probe.error:
            findings += run("working", view, spec, probe)
    return Examination(f"{PORT_PREFIX}{spec.name}", 0, findings)


def examine_all(view: View, queue: int) -> Report:
    interfaces: list[Examination] = []
    of_host: list[Finding] = []
    for link in candidates(view.links):
        of_host, of_link = _findings(view, link, queue)
        interfaces.append(Examination(link.name, queue, of_link))
    if not interfaces:
        # The host's part of the C stack's answer is the same for any interface.
        of_host = _of_stack(view, "lo", queue)[0]
    for port in view.config.dpdk:
        interfaces.append(examine_port(view, port.port))
    return Report([*of_host, *run("host", view)], interfaces)


def _findings(view: View, link: Link, queue: int) -> tuple[list[Finding], list[Finding]]:
    """Return the findings about the host by the C stack, and about the interface by both."""
    of_host, of_link = _of_stack(view, link.name, queue)
    if link.loopback:
        return of_host, of_link
    if view.is_leased(link):
        of_host = [_with_lease(finding) for finding in of_host]
        of_link = [_with_lease(finding) for finding in of_link]
    own = list(run("interface", view, link, queue))
    # For a device that can't be used, the finding "device" suffices.
    if any(finding.name == "device" and finding.severity == Severity.NO for finding in own):
        of_link = [item for item in of_link if item.name != "xdp-mode" or not item.severity]
    return of_host, of_link + own


def _of_stack(view: View, ifname: str, queue: int) -> tuple[list[Finding], list[Finding]]:
    findings = view.stack(ifname, queue)
    of_host = [finding for finding in findings if finding.name in HOST_NAMES]
    return of_host, [finding for finding in findings if finding.name not in HOST_NAMES]


def _with_lease(finding: Finding) -> Finding:
    """Return the finding as good if it does not matter to a job with a lease."""
    reasons = {
        "privilege": "harpd leases queues; a job needs none",
        "memlock": "harpd leases packet memory; a job locks none",
        "xdp-program": "harpd's",
    }
    if finding.severity == Severity.COSTS:
        reasons["queue"] = "harpd gives each of them its own ports"
    if finding.severity and finding.name in reasons:
        text = f"{finding.text}: {reasons[finding.name]}"
        return replace(finding, severity=Severity.GOOD, text=text, remedy="")
    return finding
