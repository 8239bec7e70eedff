# SPDX-License-Identifier: Apache-2.0
"""harpctl bench idle: processor time of waiting ranks."""

from dataclasses import asdict
from typing import Any

import click

from harp import output as console
from harp.bench.runner import BenchOptions, path, run_bench
from harp.cli.lab_options import (
    channels_option,
    hosts_option,
    lab_options,
    lab_shape,
    nic_option,
    path_option,
)
from harp.cli.options import FiniteRange, output_option, plugin_option, show
from harp.lab import Lab, LabOptions, memif
from harp.words import plural


def _print_idle(report: dict[str, Any]) -> None:
    console.print_line(
        f"NET/{report['net']}, {report['ranks']} ranks, {plural(report['channels'], 'channel')},"
        f" {LabOptions(**report['lab']).words}"
        + ("" if report["nic"] == "veth" else f", {report['nic']}")
    )
    if line := path(report):
        console.print_line(f"path: {line}")
    rows = [
        (
            result["rank"],
            f"{result['asleep_cpu_percent']:.3f}",
            f"{result['asleep_wakes_per_s']:.1f}",
            f"{result['waiting_cpu_percent']:.3f}",
            f"{result['waiting_wakes_per_s']:.1f}",
            f"{result['polling_cpu_percent']:.1f}",
        )
        for result in report["results"]
    ]
    columns = ("rank", "asleep % of a core", "wakes/s", "waiting %", "waiting wakes/s")
    console.print_table((*columns, "(NCCL's own poll %)"), rows)
    if not report["ok"]:
        console.print_line(f"FAILED: {report['error']}")


@click.command()
@hosts_option
@click.option("--seconds", type=FiniteRange(0.1), default=60.0, help="Of each wait.")
@channels_option
@lab_options
@path_option
@nic_option
@plugin_option
@output_option
def idle(hosts: int, output: str, **arguments: Any) -> None:
    """Measure processor time of ranks that wait with connections open: asleep, then polling.

    Asleep: NCCL calls nothing, so all processor time is the plugin's. Waiting: NCCL's progress
    thread polls for a late rank; the time of all other threads counts. The goal of both is below
    1 %.

    \b
    harpctl bench idle --seconds 10
    harpctl bench idle --seconds 10 --nic dpdk-memif
    """
    shape = lab_shape(arguments, hosts)
    if arguments["nic"] == memif.NIC:  # before the hosts are made
        memif.check(hosts, arguments["path"])
    with Lab(shape) as lab:
        report = run_bench(lab, BenchOptions("idle", **arguments))
    report |= {"lab": asdict(shape), "nic": arguments["nic"]}
    show(report, output, _print_idle, is_good=report["ok"])
