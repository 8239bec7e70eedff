# SPDX-License-Identifier: Apache-2.0
"""harpctl bench: the commands of harp.bench."""

import click

from harp.bench.connect import connect
from harp.bench.dpdk import dpdk
from harp.bench.failover import failover
from harp.bench.idle import idle
from harp.bench.loss import loss
from harp.bench.nccl import nccl
from harp.bench.nccl_real import nccl_real
from harp.bench.torch_bench import torch
from harp.bench.wire import wire
from harp.cli.group import Group


@click.group(cls=Group)
def bench() -> None:
    """Measure HARP between hosts made on this machine (network namespaces). Needs root.

    \b
    harpctl bench nccl
    harpctl bench nccl --setting 1500-on --shape allreduce --rounds 3
    harpctl bench wire --nic dpdk:net_memif0
    """


for command in (connect, dpdk, failover, idle, loss, nccl, nccl_real, torch, wire):
    bench.add_command(command)
