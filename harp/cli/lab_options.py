# SPDX-License-Identifier: Apache-2.0
"""Options of commands that make test hosts. harp.lab takes 0.1 s to import, so it is imported
late.
"""

from collections.abc import Callable
from typing import Any

import click

from harp.lab import MTU_MAX, MTU_MIN, LabOptions, memif

type_mtu = click.IntRange(MTU_MIN, MTU_MAX)
plugin_option = click.option(
    "--plugin", metavar="PATH", help="The ncclNet plugin to load (default: HARP's own)."
)
path_option = click.option(
    "--path",
    type=click.Choice(["auto", "xdp", "kernel"]),
    default="auto",
    show_default=True,
    help="HARP_PATH: which way HARP goes; a forced one that can't be had is an error.",
)
nic_option = click.option(
    "--nic",
    type=click.Choice(["veth", memif.NIC]),
    default="veth",
    show_default=True,
    help=f"{memif.NIC}: a DPDK port in each rank, joined by shared memory; for two hosts.",
)
ipv6_option = click.option("--ipv6", is_flag=True, help="Hosts with IPv6 addresses only.")


def lab_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--mtu, --offload and --ipv6 of the test hosts."""
    offload = click.option(
        "--offload",
        type=click.Choice(["on", "off"]),
        default="on",
        show_default=True,
        help="Segmentation, GRO and checksum offloads of the veth devices.",
    )
    mtu = click.option(
        "--mtu", type=type_mtu, default=1500, show_default=True, help="Of every interface, bytes."
    )
    return mtu(offload(ipv6_option(command)))


def lab_shape(given: dict[str, Any], hosts: int = 2) -> LabOptions:
    """Build LabOptions from those options and remove them from given."""
    return LabOptions(hosts, given.pop("mtu"), given.pop("offload") == "on", ipv6=given.pop("ipv6"))
