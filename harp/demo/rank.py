# SPDX-License-Identifier: Apache-2.0
"""One rank of the demo: a process on one host. Writes JSON lines to standard output.

By hand, between two real hosts: `harpctl run -- python -m harp.demo.rank --rank 0 --ranks 2 --root
ADDRESS:PORT` on the first, whose address it is, and with `--rank 1` on the second.
"""

import argparse
import json
import os
import re
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from harp.collectives import CollectiveError, Communicator, TcpStore, log_lines
from harp.demo import model as net
from harp.plugin_log import path_in_use

_STATS_LINE = re.compile(r"HARP stats:(?P<pairs>.*)")


def emit(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def train(comm: Communicator, arguments: argparse.Namespace) -> net.Floats:
    data, model = net.make_data(), net.Model()
    gradient = np.zeros(len(model.weights) + 1, np.float32)
    comm.barrier()
    for epoch in range(arguments.epochs):
        start, in_comm, losses = time.perf_counter(), 0.0, []
        for batch in net.batches(len(data.train_images), epoch):
            mine = net.shard(batch, arguments.rank, arguments.ranks)
            model.gradient(data.train_images[mine], data.train_labels[mine], gradient)
            before = time.perf_counter()
            comm.allreduce(gradient)
            in_comm += time.perf_counter() - before
            losses.append(float(gradient[-1]))
            model.step(gradient[:-1])
        emit(
            "epoch",
            epoch=epoch + 1,
            loss=sum(losses) / len(losses),
            accuracy=model.accuracy(data.test_images, data.test_labels),
            seconds=time.perf_counter() - start,
            comm_seconds=in_comm,
            allreduces=len(losses),
            gradient_bytes=gradient.nbytes,
        )
        time.sleep(arguments.pause)
    return model.weights


def path(log: list[tuple[int, str]]) -> str:
    return path_in_use([text for _, text in log]) or "unknown: the plugin has not logged it"


def warnings(log: list[tuple[int, str]]) -> list[str]:
    return [text for level, text in log if level == 2]


def plugin_stats(log: list[tuple[int, str]]) -> dict[str, int]:
    """Add up the counters in the plugin's final log lines, one for each instance, if any."""
    total: Counter[str] = Counter()
    for _level, text in log:
        if match := _STATS_LINE.search(text):
            pairs = (pair.split("=") for pair in match["pairs"].split() if "=" in pair)
            total.update({name: int(value) for name, value in pairs})
    return dict(total)


def kernel_counters(ifname: str) -> dict[str, int]:
    """Return the kernel's counters on this host, for ranks on kernel lanes."""
    statistics = Path("/sys/class/net") / ifname / "statistics"
    if not statistics.exists():  # a container without /sys
        return {}
    rows = [line.split() for line in Path("/proc/net/snmp").read_text().splitlines()]
    names, values = (row for row in rows if row[0] == "Tcp:")
    tcp = dict(zip(names[1:], map(int, values[1:]), strict=True))
    return {
        "tx_packets": int((statistics / "tx_packets").read_text()),
        "rx_packets": int((statistics / "rx_packets").read_text()),
        "tcp_retransmits": tcp["RetransSegs"],
    }


def run(arguments: argparse.Namespace) -> None:
    before = kernel_counters(arguments.ifname) if arguments.ifname else {}
    address, _, port = arguments.root.rpartition(":")
    store = TcpStore(
        address.strip("[]"), int(port), serve=arguments.rank == 0, timeout_s=arguments.timeout
    )
    with (
        closing(store),
        Communicator(
            arguments.rank,
            arguments.ranks,
            store,
            plugin=arguments.plugin,
            timeout_s=arguments.timeout,
            host=arguments.memory,
        ) as comm,
    ):
        comm.barrier()  # connects
        emit("connected", path=path(log_lines()), plugin=comm.net())
        weights = train(comm, arguments)
        comm.barrier()
        stats = comm.stats()
    log = log_lines()
    if arguments.weights:
        np.save(arguments.weights, weights)
    counters = plugin_stats(log)
    if not counters and before:
        after = kernel_counters(arguments.ifname)
        counters = {name: after[name] - before[name] for name in after if name in before}
    emit(
        "done",
        path=path(log),
        counters=counters,
        warnings=warnings(log),
        sent_bytes=stats["net_sent_bytes"],
        received_bytes=stats["net_received_bytes"],
        operations=stats["operations"],
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m harp.demo.rank")
    parser.add_argument(
        "--plugin", default=os.environ.get("NCCL_NET_PLUGIN"), help="default: $NCCL_NET_PLUGIN"
    )
    parser.add_argument("--rank", type=int, required=True, help="from 0")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--root", required=True, help="where rank 0 listens: ADDRESS:PORT")
    parser.add_argument(
        "--memory", default="", help="ranks with the same text share memory; default: none do"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0, help="after each epoch, seconds")
    parser.add_argument("--ifname", help="count the packets of this NIC if the kernel carries them")
    parser.add_argument("--weights", type=Path, help="file to write the trained weights to (.npy)")
    parser.add_argument("--timeout", type=float, default=60, help="of one operation, seconds")
    arguments = parser.parse_args()
    if not re.fullmatch(r".+:\d{1,5}", arguments.root):
        parser.error(f"--root {arguments.root}: not ADDRESS:PORT")
    if not arguments.plugin:
        parser.error("no plugin: --plugin, or run it under `harpctl run --`")
    try:
        run(arguments)
    except (CollectiveError, OSError, ValueError) as error:
        for line in (*warnings(log_lines()), str(error)):
            print(f"rank: {line}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
