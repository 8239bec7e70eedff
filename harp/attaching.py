# SPDX-License-Identifier: Apache-2.0
"""What attaching HARP's XDP program costs the kernel's own TCP: with it and without, by turns.

The sockets, their costs and the intervals are those of harp.paths.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from harp import _paths
from harp.bench import BenchOptions
from harp.daemon.client import DaemonClient
from harp.daemon.loop import close_all
from harp.errors import Exit, HarpError
from harp.lab import Host, Lab, LabOptions
from harp.lab_harpd import LabHarpd
from harp.netns import in_namespace
from harp.paths import (
    KIB,
    MIB,
    SOCKETS,
    WAYS,
    Say,
    Way,
    check_bare,
    cost_alone,
    interval,
    program_attached,
    sizes_argument,
)

ATTACH_GOAL = 0.9  # the kernel's speed with HARP's program to that without: at least
# enum harp_xdp_mode, and whether a device beside the interface will do; "unnamed" is what auto does
# with an interface that nobody named, "direct" generic where there can be no such device.
ATTACH_MODES: dict[str, tuple[int, bool] | None] = {
    "none": None,
    "unnamed": (3, True),
    "named": (0, True),
    "direct": (1, False),
    "native": (2, False),
}
LEASED = "leased"  # harpd's way, with a lease that nobody uses
ATTACH_ORDER = ("none", "unnamed", "named", LEASED, "direct", "native")
ATTACH_JUDGED = ("unnamed", LEASED)
ATTACH_TESTS = {"lat 8 B": ("lat", 8), "lat 16 KiB": ("lat", 16 * KIB), "bw 1 MiB": ("bw", MIB)}


@dataclass(frozen=True)
class AttachOptions:
    """What the attach bench does."""

    lab: LabOptions = field(default_factory=LabOptions)
    rounds: int = 7


class AttachRefusedError(HarpError):
    """The program is not attached in that mode; the text says why."""


class Attached:
    """HARP's steering program on every host, nobody's port in its maps; mode None: not there."""

    def __init__(self, lab: Lab, mode: tuple[int, bool] | None) -> None:
        self.why = "no program"
        self._lab, self._mode = lab, mode
        self._undo = ExitStack()

    def __enter__(self) -> "Attached":
        if self._mode is None:
            check_bare(self._lab)
            return self
        from harp import _host

        _host.load_library(str(_paths.find(_paths.XDP_LIBRARY)))
        mode, beside = self._mode

        def attach(host: Host) -> None:
            def work(_ipr: Any) -> None:
                steering = _host.Steering.attach(host.ifname, mode, beside)
                self._undo.callback(steering.close)
                self.why = steering.why

            try:
                in_namespace(host.netns, work)
            except HarpError as error:
                if isinstance(error.__cause__, OSError):
                    raise AttachRefusedError(str(error.__cause__.strerror)) from error
                raise
            if not program_attached(host):
                raise HarpError(f"{host.netns}: HARP's program is not attached")

        try:
            for host in self._lab.hosts:
                attach(host)
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()


class Leased:
    """A harpd on every host and a lease of its NIC."""

    def __init__(self, lab: Lab) -> None:
        self.why = ""
        self._lab = lab
        self._undo = ExitStack()

    def __enter__(self) -> "Leased":
        try:
            for host in self._lab.hosts:
                self._lease(host)
        except BaseException:
            self._undo.close()
            raise
        return self

    def _lease(self, host: Host) -> None:
        # The NIC stays as it is without: only the program is measured.
        harpd = self._undo.enter_context(LabHarpd(host, daemon={"prepare": False}))
        client = self._undo.enter_context(DaemonClient(harpd.socket, "bench"))
        self._undo.callback(close_all, client.lease(host.ifname)[1])
        self.why = client.query("status")["nics"][0]["mode_why"]

    def __exit__(self, *_: object) -> None:
        self._undo.close()


def run_attach(options: AttachOptions, say: Say) -> dict[str, Any]:
    """Kernel TCP between two hosts, with HARP's program in each mode and without, by turns."""
    if options.lab.ipv6:
        raise HarpError("attach: the sockets that it measures speak IPv4 only", Exit.USAGE)
    costs: dict[str, dict[str, list[float]]] = {
        mode: {test: [] for test in ATTACH_TESTS} for mode in ATTACH_ORDER
    }
    why: dict[str, str] = {}
    refused: dict[str, str] = {}
    sockets = next(way for way in WAYS if way.name == SOCKETS)
    with Lab(options.lab) as lab:
        for index in range(options.rounds):
            say(f"round {index + 1} of {options.rounds}")
            turn = index % len(ATTACH_ORDER)
            for mode in (*ATTACH_ORDER[turn:], *ATTACH_ORDER[:turn]):
                if mode in refused:
                    continue
                leased = mode == LEASED
                try:
                    with Leased(lab) if leased else Attached(lab, ATTACH_MODES[mode]) as attached:
                        why[mode] = attached.why
                        for test, (kind, size) in ATTACH_TESTS.items():
                            costs[mode][test].append(_kernel_cost(lab, sockets, kind, size))
                except AttachRefusedError as error:
                    check_bare(lab)
                    refused[mode] = str(error)
    return judge_attach(options, costs, why, refused)


def _kernel_cost(lab: Lab, sockets: Way, mode: str, size: int) -> float:
    options = BenchOptions(
        mode,
        plugin=str(_paths.find(_paths.SOCKET_PLUGIN)),
        sizes=sizes_argument(mode, [size]),
        datacheck=False,
        environment=sockets.environment,
    )
    return cost_alone(lab, options, f"kernel sockets, {mode}")


def judge_attach(
    options: AttachOptions,
    costs: Mapping[str, Mapping[str, Sequence[float]]],
    why: Mapping[str, str],
    refused: Mapping[str, str],
) -> dict[str, Any]:
    """Speeds with HARP's program to speeds without; an unnamed interface's and a leased one's have
    a goal."""
    ratio = {
        mode: {test: interval(costs["none"][test], values) for test, values in found.items()}
        for mode, found in costs.items()
        if mode != "none" and mode not in refused
    }
    missed = [
        f"{mode} {test}"
        for mode in ATTACH_JUDGED
        for test, found in ratio.get(mode, {}).items()
        if found["high"] < ATTACH_GOAL
    ]
    return {
        "lab": asdict(options.lab),
        "rounds": options.rounds,
        "costs": costs,
        "speed_ratio": ratio,
        "why": dict(why),
        "refused": dict(refused),
        "goals": {"speed_ratio": ATTACH_GOAL},
        "missed": missed,
        "ok": not missed,
    }
