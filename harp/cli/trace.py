# SPDX-License-Identifier: Apache-2.0
"""harpctl trace: a job's network events as a trace for Perfetto or Chrome."""

import json
from pathlib import Path

import click

from harp import files
from harp import output as console
from harp import trace as traces
from harp.cli.options import FilePath
from harp.words import plural


@click.command()
@click.argument("directory", type=FilePath())
@click.argument("file", type=FilePath(dir_okay=False), default="trace.json")
def trace(directory: Path, file: Path) -> None:
    """Write the network events of a traced job for Perfetto or Chrome.

    DIRECTORY has the job's events. Each send and receive of NCCL is a slice with its peer, bytes,
    kinds of lanes, wait for the first byte, retransmissions and round trip. Unfinished messages are
    marked. https://ui.perfetto.dev and chrome://tracing open FILE (default: trace.json). For a job
    on several hosts, copy the files of all hosts into DIRECTORY. Needs NCCL 2.26 or later.

    \b
    harpctl run --trace /tmp/job -- torchrun --nproc-per-node 8 train.py
    harpctl trace /tmp/job job.json
    """
    processes = traces.read_directory(directory)
    with files.writing(file):
        files.write_whole(file, json.dumps(traces.chrome(processes)))
    counts = traces.summary(processes)
    console.print_line(
        f"{file}: {plural(counts['messages'], 'message')} of"
        f" {plural(counts['processes'], 'process')},"
        f" {counts['unfinished']} unfinished, {counts['failed']} failed"
    )
