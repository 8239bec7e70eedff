# SPDX-License-Identifier: Apache-2.0
"""harpctl bench idle: processor time of waiting ranks."""

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
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
    show,
)
from harp.cli.options import FiniteRange, output_option, plugin_option
from harp.lab import Lab, LabOptions, memif


@contextmanager
def _encryption(encrypt: bool) -> Iterator[dict[str, str]]:
    """Environment variables of ranks that encrypt their lanes; none for the others."""
    if not encrypt:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="harp-key-") as folder:
        key = Path(folder) / "key"
        key.touch(mode=0o600)
        key.write_text(secrets.token_hex(32) + "\n")
        yield {"HARP_ENCRYPT": "aes-256-gcm", "HARP_KEY_FILE": str(key)}


def _print_idle(report: dict[str, Any]) -> None:
    console.out.print(
        f"NET/{report['net']}, {report['ranks']} ranks, {report['channels']} channel(s),"
        f" {LabOptions(**report['lab']).words}"
        + ("" if report["nic"] == "veth" else f", {report['nic']}")
        + (", encrypted lanes" if report["encrypt"] else ""),
        markup=False,
    )
    if words := path(report):
        console.out.print(f"path: {words}", markup=False)
    rows = [
        {
            "rank": str(result["rank"]),
            "asleep % of a core": f"{result['asleep_cpu_percent']:.3f}",
            "wakes/s": f"{result['asleep_wakes_per_s']:.1f}",
            "waiting %": f"{result['waiting_cpu_percent']:.3f}",
            "waiting wakes/s": f"{result['waiting_wakes_per_s']:.1f}",
            "(NCCL's own poll %)": f"{result['polling_cpu_percent']:.1f}",
        }
        for result in report["results"]
    ]
    console.print_table(list(rows[0]) if rows else ["rank"], [list(row.values()) for row in rows])
    if not report["ok"]:
        console.out.print(f"FAILED: {report['error']}", markup=False)


@click.command()
@hosts_option
@click.option(
    "--seconds", type=FiniteRange(0.1), default=60.0, show_default=True, help="Of each wait."
)
@channels_option
@click.option("--encrypt", is_flag=True, help="Encrypt the lanes with a key made for this run.")
@click.option(
    "--timeout",
    type=FiniteRange(0.1),
    default=60.0,
    show_default=True,
    help="Seconds without progress after which the ranks end.",
)
@lab_options
@path_option
@nic_option
@plugin_option
@output_option
def idle(hosts: int, output: str, **given: Any) -> None:
    """Measure processor time of ranks that wait with connections open: asleep, then polling.

    Asleep, NCCL calls nothing, and the plugin uses all of the time. Waiting, NCCL's progress thread
    polls for a rank that is late, and the time of all other threads counts. The goal of both is
    below 1 %.

    \b
    harpctl bench idle --seconds 10
    harpctl bench idle --seconds 10 --nic dpdk-memif
    """
    shape = lab_shape(given, hosts)
    if given["nic"] == memif.NIC:  # before the hosts are made
        memif.check(hosts, given["path"])
    encrypt = given.pop("encrypt")
    with _encryption(encrypt) as environment, Lab(shape) as lab:
        timeout_s = given.pop("timeout")
        options = BenchOptions("idle", timeout_s=timeout_s, environment=environment, **given)
        report = run_bench(lab, options)
    report |= {"lab": asdict(shape), "encrypt": encrypt, "nic": given["nic"]}
    show(report, output, _print_idle, is_good=report["ok"])
