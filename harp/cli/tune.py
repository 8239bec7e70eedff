# SPDX-License-Identifier: Apache-2.0
"""harpctl tune: measure which path carries which messages between this host and a peer."""

import re
import secrets
import socket
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress

from harp import files, tuner
from harp import output as console
from harp.bench import tune as runner
from harp.bench.runner import Say
from harp.cli.lab_options import rounds_option
from harp.cli.options import FilePath, complete_interface, output_option, show
from harp.config import profile
from harp.errors import Exit, HarpError


def _wait(port: int, ifname: str | None, file: Path) -> None:
    token = secrets.token_hex(8)
    try:
        listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    except OSError:
        try:
            listener = socket.create_server(("", port))
        except OSError as error:
            raise HarpError(f"port {port}: {error.strerror}; choose another with --port") from error

    with listener:
        own_port = listener.getsockname()[1]
        console.print_line(
            f"waiting on port {own_port}; on the other host run:\n"
            f"    harpctl tune {socket.gethostname()} --port {own_port} --token {token}"
        )
        say: Say = partial(console.print_line, console=console.err)
        runner.serve(listener, token, ifname, file, say)
    console.print_line(f"{file}: written; new jobs use it")


def _measure(
    peer: str, port: int, token: str, ifname: str | None, file: Path, rounds: int, nccl: bool
) -> Any:
    shapes = runner.ALL_SHAPES if nccl else runner.SHAPES
    with runner.connect(peer, port, token) as link:
        name, peers = runner.interface_of(str(link.sock.getsockname()[0]))
        name = ifname or name
        other = {key: str(value)[:64] for key, value in link.receive().items()}
        with Progress(console=console.err, transient=True) as bar:
            task = bar.add_task("start", total=runner.steps(rounds, shapes))
            done = iter(range(runner.steps(rounds, shapes)))

            def advance(text: str) -> None:
                bar.update(task, description=text, completed=next(done))

            measured, path_line = runner.measure(link, name, rounds, advance, shapes)
        limit = runner.harp_up_to({name: measured[name] for name in runner.SHAPES})
        result: dict[str, Any] = {
            "mode": runner.nic_mode(path_line),
            "harp_up_to": limit,
            "measured": runner.rows(measured),
        }
        if nccl:
            result["tuner"] = runner.tuner_times(measured, limit)

        def text(host: str, ifname: str, peers: str) -> str:
            entry = profile.Entry(ifname, result["mode"], limit, peers)
            return profile.text([entry], host, result.get("tuner"))

        written = [runner.write_profile(file, text(socket.gethostname(), name, peers))]
        theirs = [other.get(key, "") for key in ("host", "ifname", "peers")]
        link.send({"profile": text(*theirs)})
        written.append(f"{theirs[0]}: {str(link.receive().get('written'))[:300]}")
    return {"ifname": name, "peers": peers, **result, "written": written}


def _print(report: dict[str, Any]) -> None:
    columns = ("shape", "message", "HARP lanes", "kernel lanes", "speed of HARP")
    rows = [
        [
            row["shape"],
            f"{row['message_bytes']:,}",
            f"{row['harp_us']:,.1f}",
            f"{row['kernel_us']:,.1f}",
            f"{row['speed_of_harp']:.2f}",
        ]
        for row in report["measured"]
    ]
    console.out.print(
        f"{report['ifname']}, {report['mode']}, peers {report['peers']} (us, medians)"
    )
    console.print_table(columns, rows)
    limit = report["harp_up_to"]
    verdict = {
        "none": "kernel lanes carry all messages",
        "all": "HARP lanes carry all messages",
    }.get(limit, f"HARP lanes carry messages of up to {limit}, kernel lanes longer ones")
    console.print_line(f"path auto: {verdict}")
    for where in report["written"]:
        console.print_line(f"written: {where}")


class SizeType(click.ParamType[int]):
    """Bytes: 4096, 64K, 1M, 2G."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d{1,12})([kKmMgG]?)(iB|B)?", value)
        if not match or int(match[1]) == 0:
            self.fail(f"{value!r} is not a size such as 4096, 64K or 1M", param, ctx)
        return int(match[1]) << 10 * " kmg".index(match[2].lower() or " ")


def _explain(file: Path, operation: str, size: int, ranks: int, hosts: int, output: str) -> None:
    if hosts > ranks:
        raise HarpError(f"--hosts {hosts}: there are only {ranks} ranks", Exit.USAGE)
    explanation = tuner.explain(file, operation, size, ranks, hosts)
    if output == "json":
        console.print_json(explanation)
        return
    console.print_line(f"{operation} of {size:,} bytes, {ranks} ranks on {hosts} hosts")
    rows = [
        [row["algorithm"], row["protocol"], f"{row['us']:,.1f}", "chosen" if row["chosen"] else ""]
        for row in explanation["costs"]
    ]
    console.print_table(("algorithm", "protocol", "us", ""), rows)
    channels = explanation["channels"] or "as NCCL chooses"
    chunks = f"chunks of Simple: {explanation['chunk_bytes']:,} bytes"
    console.print_line(f"channels: {channels}; {chunks}")


@click.command()
@click.argument("peer", required=False)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=runner.PORT,
    help="TCP port of the host that waits.",
)
@click.option("--token", help="What `harpctl tune` printed on PEER.")
@click.option(
    "--ifname",
    metavar="IF",
    shell_complete=complete_interface,
    help="The NIC to measure (default: the one towards PEER).",
)
@rounds_option(3)
@click.option(
    "--profile",
    "file",
    type=FilePath(dir_okay=False),
    default=profile.DEFAULT_FILE,
    help="Where the profile is written.",
)
@click.option(
    "--nccl",
    is_flag=True,
    help="Measure for NCCL's tuner, too. All hosts of a job then need the same [tuner].",
)
@click.option(
    "--explain",
    nargs=3,
    type=(click.Choice(tuner.FUNCTIONS), SizeType(), click.IntRange(2)),
    metavar="OP BYTES RANKS",
    help="Print how NCCL's tuner decides by the profile, and measure nothing.",
)
@click.option(
    "--hosts",
    type=click.IntRange(2),
    help="With --explain: hosts that the ranks are on (default: as many as ranks).",
)
@output_option
def tune(
    peer: str | None,
    port: int,
    token: str | None,
    ifname: str | None,
    rounds: int,
    file: Path,
    nccl: bool,
    explain: tuple[str, int, int] | None,
    hosts: int | None,
    output: str,
) -> None:
    """Measure which path carries which messages, and write a profile.

    Without PEER, wait for another host that measures; with PEER, measure. For about a minute, ring
    all-reduces and streams alternate between AF_XDP and kernel TCP. Both hosts get a profile, which
    `auto` uses instead of its built-in table.

    \b
    harpctl tune                               on the first host: prints a token
    harpctl tune 10.0.0.1 --token 1f2e3d4c     on the second host
    harpctl tune --explain allreduce 1M 8      prints what NCCL's tuner decides
    """
    if explain is not None:
        _explain(file, *explain, hosts or explain[2], output)
        return
    if peer is None:
        if token is not None:
            raise HarpError("--token needs PEER, the host that printed it", Exit.USAGE)
        files.check_writable(file)
        _wait(port, ifname, file)
        return
    if token is None:
        raise HarpError(
            f"--token is missing: run `harpctl tune` on {peer} and give the token that it prints",
            Exit.USAGE,
        )
    files.check_writable(file)
    report = _measure(peer, port, token, ifname, file, rounds, nccl)
    show(report, output, _print)
