# SPDX-License-Identifier: Apache-2.0
"""Options of benches and of the demo."""

from collections.abc import Callable
from typing import Any

import click

from harp.cli.options import FilePath
from harp.lab import MTU_MAX, MTU_MIN, LabOptions, memif

type_path = click.Choice(["auto", "xdp", "kernel"])
type_mtu = click.IntRange(MTU_MIN, MTU_MAX)
path_option = click.option(
    "--path",
    type=type_path,
    default="auto",
    help="HARP_PATH. A path that is forced and not available is an error.",
)
nic_option = click.option(
    "--nic",
    type=click.Choice(["veth", memif.NIC]),
    default="veth",
    help=f"{memif.NIC}: a DPDK port in each rank, joined by shared memory; two hosts only.",
)
hosts_option = click.option("--hosts", type=click.IntRange(2, 4), default=2, help="Test hosts.")
channels_option = click.option(
    "--channels", type=click.IntRange(1, 32), default=1, help="Connections per direction."
)
paths_option = click.option(
    "--path",
    "paths",
    type=type_path,
    multiple=True,
    default=("auto",),
    help="HARP_PATH; may be repeated.",
)
plot_option = click.option(
    "--plot",
    metavar="FILE",
    type=FilePath(dir_okay=False),
    help="Also write a plot (.png or .svg); needs matplotlib.",
)
ipv6_option = click.option("--ipv6", is_flag=True, help="Hosts with IPv6 addresses only.")


def rounds_option(rounds: int) -> Callable[..., Any]:
    kind = click.IntRange(1, 50)
    return click.option("--rounds", type=kind, default=rounds, help="Repetitions.")


def lab_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --mtu, --offload and --ipv6 of the test hosts."""
    offload = click.option(
        "--offload",
        type=click.Choice(["on", "off"]),
        default="on",
        help="Segmentation, GRO and checksum offloads of the veth devices.",
    )
    mtu = click.option("--mtu", type=type_mtu, default=1500, help="MTU of every interface, bytes.")
    return mtu(offload(ipv6_option(command)))


def lab_shape(options: dict[str, Any], hosts: int = 2) -> LabOptions:
    """Remove the options of lab_options() and return them as LabOptions."""
    mtu, offload, ipv6 = (options.pop(name) for name in ("mtu", "offload", "ipv6"))
    return LabOptions(hosts, mtu, offload == "on", ipv6=ipv6)


VERDICT = {True: "met", False: "MISSED"}  # of a goal
