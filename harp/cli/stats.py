# SPDX-License-Identifier: Apache-2.0
"""harpctl stats and flows: statistics of instances and jobs, once or repeatedly."""

import ipaddress
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.table import Table

from harp import output as console
from harp.cli.options import (
    WIDE,
    complete_interface,
    complete_pid,
    interval_option,
    output_option,
    watch_option,
)
from harp.cli.options import watch as repeat
from harp.errors import Exit, HarpError
from harp.stats import lanes_view, view
from harp.stats.instance import read_host

Document = Mapping[str, Any]


def _filtered(
    host: Document, nic: str | None, queue: int | None, pid: int | None
) -> dict[str, Any]:
    instances = [
        instance
        for instance in host["instances"]
        if (nic is None or instance["identity"]["ifname"] == nic)
        and (queue is None or instance["identity"]["queue"] == queue)
        and (pid is None or instance["pid"] == pid)
    ]
    # Queues belong to instances, so a filter by queue excludes jobs.
    jobs = [job for job in host["jobs"] if queue is None and pid in (None, job["pid"])]
    if nic is not None:
        jobs = [
            lanes_view.over_nic(job, nic)
            for job in jobs
            if any(rail["ifname"] == nic for rail in job["rails"])
        ]
    return {**host, "instances": instances, "jobs": jobs}


def _explain(host: Document, *, filtered: bool) -> None:
    """Print warnings on stderr; HarpError if nothing could be read."""
    for bad in host["bad_pages"]:
        console.print_line(f"harpctl: process {bad['pid']}: {bad['why']}", console.err)
    if host["instances"] or host["jobs"]:
        return
    if host["bad_pages"]:
        raise HarpError("no page could be read")
    if host["hidden_processes"]:
        raise HarpError(
            "no process of this user publishes statistics; run as root to see those of others",
            Exit.PRIVILEGE,
        )
    scope = "process that matches" if filtered else "process on this host"
    console.print_line(f"harpctl: no {scope} publishes statistics", console.err)


class _Readings:
    """The previous reading, for rates."""

    def __init__(self) -> None:
        self._last: tuple[float, Document] | None = None

    def next(self, host: Document) -> tuple[float, Document | None]:
        """Return the seconds since the previous reading, and that reading; None at the first."""
        now_s, last = time.monotonic(), self._last
        self._last = now_s, host
        return (now_s - last[0], last[1]) if last else (0.0, None)


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--nic",
            metavar="NAME",
            help="Only jobs and instances that use this NIC.",
            shell_complete=complete_interface,
        ),
        click.option("--queue", type=click.IntRange(0), help="Only instances on this queue."),
        click.option(
            "--pid", type=click.IntRange(1), help="Only this process.", shell_complete=complete_pid
        ),
        interval_option,
        watch_option,
        output_option,
    ):
        command = option(command)
    return command


def _show(
    look: Callable[[], Document],
    draw: Callable[[Document], RenderableType],
    options: Mapping[str, Any],
    *,
    filtered: bool,
) -> None:
    """Show what look() returns, as tables by draw() or as JSON: once, or with --watch."""
    as_json = options["output"] == "json"
    if options["watch"]:
        repeat(look, draw, options["interval"], as_json)
    host = look()
    _explain(host, filtered=filtered)
    if as_json:
        console.print_json(host)
    elif host["instances"] or host["jobs"]:
        console.print_whole(draw(host), WIDE)


@click.command()
@_options
@click.option("--all", "everything", is_flag=True, help="Explain every statistic that isn't 0.")
def stats(
    nic: str | None,
    queue: int | None,
    pid: int | None,
    everything: bool,
    **options: Any,
) -> None:
    """Show what jobs and instances do: bytes, lanes, losses, round trips, drops by reason.

    An instance is a stack on a queue of a NIC. A job is a process that runs the NCCL plugin; its
    lanes may be the kernel's. Without --watch, numbers are sums since the job or instance started;
    with --watch, changes between two readings. JSON has all published values, as sums; with
    --watch, a document on each line. Reading never disturbs a job. Exit code 0: shown; 1: no page
    could be read; 3: needs root.

    \b
    harpctl stats                      all jobs and instances, once
    harpctl stats --watch              repeated, like top
    harpctl stats --nic eth1 --all     every statistic of eth1's instances
    harpctl stats -o json | jq '.instances[].counters.tcp_retransmits'
    harpctl stats -o json | jq '.jobs[].counters.lanes_replaced'
    """

    def look() -> Document:
        return _filtered(read_host(flows=options["output"] == "json"), nic, queue, pid)

    readings = _Readings()

    def draw(host: Document) -> RenderableType:
        if everything and not options["watch"]:
            return Group(*_all_tables(host))
        jobs = lanes_view.jobs_table(host)
        parts: list[RenderableType] = [] if jobs is None else [jobs, *lanes_view.job_notes(host)]
        if rates := view.rates(host, *readings.next(host)):
            parts += ["", view.stats_view(host, rates, live=options["watch"])]
        return Group(*parts)

    _show(look, draw, options, filtered=(nic, queue, pid) != (None, None, None))


def _all_tables(host: Document) -> Iterator[Table]:
    for job in host["jobs"]:
        if any(job["counters"].values()):
            yield lanes_view.all_job_counters(job)
    for instance in host["instances"]:
        yield view.all_counters(instance)
        if (driver_table := view.all_xstats(instance)) is not None:
            yield driver_table


def _network(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> lanes_view.Network | None:
    try:
        return None if value is None else ipaddress.ip_network(value, strict=False)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is neither an address nor a network such as 10.0.0.0/24"
        ) from None


@click.command()
@_options
@click.option(
    "--peer",
    metavar="ADDRESS",
    callback=_network,
    help="Only with this peer: an address or a network.",
)
@click.option("--flat", is_flag=True, help="List HARP's TCP connections, whether lanes or not.")
def flows(
    nic: str | None,
    queue: int | None,
    pid: int | None,
    peer: lanes_view.Network | None,
    flat: bool,
    **options: Any,
) -> None:
    """Show lanes by peer and comm, with bytes, round trips and losses; and other connections.

    A comm is one of NCCL's connections; a lane is one of its TCP streams, HARP's or the kernel's.
    Jobs with kernel lanes only are included, with and without harpd. carried: bytes of messages,
    so far or (--watch) per second. moved: chunks moved from the lane (-) and to it (+). --flat:
    HARP's connections with their windows. JSON has both; docs/metrics.md describes it. Exit code 0:
    shown; 1: no page could be read; 2: bad usage, such as an invalid --peer; 3: needs root.

    \b
    harpctl flows
    harpctl flows --watch --interval 0.5 --pid 4711 --peer 10.0.0.0/24
    harpctl flows --flat --nic eth1
    harpctl flows -o json | jq '.jobs[].comms[].lanes[] | .state'
    """

    def look() -> Document:
        host = _filtered(read_host(flows=True), nic, queue, pid)
        return host if peer is None else lanes_view.of_peers(host, peer)

    readings = _Readings()

    def draw(host: Document) -> RenderableType:
        if flat or queue is not None:
            return view.flows_view(host)
        seconds, before = readings.next(host)
        return lanes_view.lanes_view(host, lanes_view.rates(before, seconds))

    _show(look, draw, options, filtered=(nic, queue, pid, peer) != (None,) * 4)
