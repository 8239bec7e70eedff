# SPDX-License-Identifier: Apache-2.0
"""harpctl demo."""

from typing import Any

import click

from harp.cli.lab_options import hosts_option, lab_options, lab_shape, nic_option
from harp.cli.options import output_option, plugin_option, show
from harp.lab import memif
from harp.output import out


@click.command()
@hosts_option
@click.option(
    "--ranks-per-host",
    type=click.IntRange(1, 8),
    default=1,
    help="Processes on each host; more than one means --daemon.",
)
@click.option(
    "--daemon",
    is_flag=True,
    help="Run a harpd on each host, and the ranks as user nobody in containers with its socket.",
)
@nic_option
@click.option("--epochs", type=click.IntRange(1, 1000), default=20, help="Epochs to train.")
@click.option(
    "--baseline",
    is_flag=True,
    help="Also train over kernel sockets, used as NCCL uses them, and compare.",
)
@click.option(
    "--torch",
    "is_torch",
    is_flag=True,
    help="Train an unmodified PyTorch script instead, over Gloo and over HARP (docs/torch.md).",
)
@click.option(
    "--path",
    type=click.Choice(["auto", "xdp", "kernel"]),
    help="HARP_PATH. Default: xdp on veth, so that HARP's TCP is what you see; auto on DPDK.",
)
@lab_options
@plugin_option
@output_option
def demo(hosts: int, is_torch: bool, path: str | None, output: str, **arguments: Any) -> None:
    """Train a small neural network across hosts made on this machine. Needs root.

    Every gradient is all-reduced through the plugin. At the end, compares the weights with those of
    a single-process run over the same batches; exit code 1 if they disagree.

    \b
    harpctl demo
    harpctl demo --baseline
    harpctl demo --hosts 4 --mtu 9000
    harpctl demo --ipv6
    harpctl demo --ranks-per-host 4
    harpctl demo --nic dpdk-memif
    harpctl demo --path kernel -o json
    harpctl demo --torch --epochs 3
    """
    shape = lab_shape(arguments, hosts)
    epochs, nic, ranks_per_host = arguments["epochs"], arguments["nic"], arguments["ranks_per_host"]
    if is_torch:
        others = arguments["daemon"] or arguments["baseline"] or arguments["plugin"]
        if others or ranks_per_host > 1 or nic == memif.NIC:
            raise click.UsageError(
                "--torch accepts --hosts, --epochs, --path, --mtu, --offload and --ipv6 only"
            )
        from harp.demo import torch_run

        report = torch_run.run(shape, epochs, path or "auto")
        show(report, output, torch_run.print_report, is_good=report["agree"])
        return
    from harp.demo import run  # Import late: numpy takes 0.1 s.

    path = path or ("auto" if nic == memif.NIC else "xdp")
    arguments["daemon"] = arguments["daemon"] or ranks_per_host > 1
    options = run.DemoOptions(shape, path=path, **arguments)
    if output != "json":
        ranks = f" with {ranks_per_host} ranks each" if ranks_per_host > 1 else ""
        daemons = ", harpd on each, ranks without privileges" if options.daemon else ""
        network = "DPDK ports joined by memif" if nic == memif.NIC else f"path {path}"
        text = f"{hosts} hosts{ranks} on this machine, {shape.words}, {network}{daemons}"
        out.print(text, soft_wrap=True)
    report = run.run(options, run.print_epoch if output != "json" else lambda _: None)
    show(report, output, run.print_report, is_good=report["verdict"]["agree"])
