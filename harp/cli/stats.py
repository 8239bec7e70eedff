# SPDX-License-Identifier: Apache-2.0
"""harpctl stats and flows: statistics of instances and jobs, once or repeatedly."""

import ipaddress
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click
from rich.console import Group, RenderableType

from harp import output as console
from harp.cli.complete import complete_interface, complete_pid
from harp.cli.options import output_option
from harp.cli.watch import WIDE, interval_option, watch_option
from harp.cli.watch import watch as repeat
from harp.errors import Exit, HarpError
from harp.stats import lanes_view, view
from harp.stats.instance import Instance, Sight, sight_document
from harp.stats.job import Job
from harp.stats.rates import Rates
from harp.stats.source import Source

Filter = Callable[[Sight], Sight]


def _filter(nic: str | None, queue: int | None, pid: int | None) -> Filter:
    def instance(each: Instance) -> bool:
        identity = each.snapshot.identity
        return (
            (nic is None or identity.ifname == nic)
            and (queue is None or identity.queue == queue)
            and (pid is None or each.pid == pid)
        )

    def jobs(sight: Sight) -> Iterator[Job]:
        for each in sight.jobs:
            # Queues belong to instances, so a filter by queue excludes jobs.
            if queue is not None or (pid is not None and each.pid != pid):
                continue
            if nic is None or nic in each.nics:
                yield each if nic is None else lanes_view.over_nic(each, nic)

    def filtered(sight: Sight) -> Sight:
        kept = tuple(filter(instance, sight.instances))
        return Sight(kept, sight.hidden_processes, sight.bad, tuple(jobs(sight)))

    return filtered


def _explain(sight: Sight, source: Source, *, filtered: bool) -> None:
    """Print warnings on stderr; HarpError if nothing could be read."""
    for pid, why in sight.bad:
        console.err.print(f"harpctl: process {pid}: {why}", markup=False, soft_wrap=True)
    if sight.instances or sight.jobs:
        return
    if sight.bad:
        raise HarpError("no page could be read")
    if sight.hidden_processes and not source.daemon:
        raise HarpError(
            "no process of this user publishes statistics; run as root to see those of others, "
            "or start harpd",
            Exit.PRIVILEGE,
        )
    which = "process that matches" if filtered else "process on this host"
    console.err.print(f"harpctl: no {which} publishes statistics", markup=False)


class _Watch:
    """Rates between two readings."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, int, int], tuple[float, Instance]] = {}

    def rates(self, sight: Sight) -> list[tuple[Rates, Instance]]:
        """Return each instance with its changes since the previous reading."""
        now_s = time.monotonic()
        seen = []
        for each in sight.instances:
            at_s, before = self._before.get(each.key, (now_s, None))
            earlier = before.snapshot if before is not None else None
            seen.append((Rates(earlier, each.snapshot, now_s - at_s), each))
        self._before = {each.key: (now_s, each) for each in sight.instances}
        return seen


class _LaneWatch:
    """Rates of lanes between two readings."""

    def __init__(self) -> None:
        self._before: tuple[float, dict[lanes_view.LaneKey, int]] | None = None

    def rates(self, sight: Sight) -> lanes_view.LaneRates:
        """Return what lanes carried since the previous reading."""
        now_s, carried = time.monotonic(), lanes_view.payloads(sight)
        before, self._before = self._before, (now_s, carried)
        if before is None:
            return lanes_view.LaneRates()
        return lanes_view.LaneRates(now_s - before[0], before[1])


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--nic",
            metavar="NAME",
            help="Only what uses this NIC.",
            shell_complete=complete_interface,
        ),
        click.option("--queue", type=click.IntRange(0), help="Only instances on this queue."),
        click.option(
            "--pid",
            type=click.IntRange(1),
            help="Only this process.",
            shell_complete=complete_pid,
        ),
        interval_option,
        watch_option,
        output_option,
    ):
        command = option(command)
    return command


@click.command()
@_options
@click.option("--all", "everything", is_flag=True, help="Every statistic that isn't 0, explained.")
def stats(
    nic: str | None,
    queue: int | None,
    pid: int | None,
    interval: float,
    watch: bool,
    output: str,
    everything: bool,
) -> None:
    """Show what jobs and instances do: bytes, lanes, losses, round trips, drops by reason.

    An instance is a stack on a queue of a NIC; a job is a process that runs the NCCL plugin, whose
    lanes may be the kernel's. Once: sums since each one's start. With --watch: what happened
    between two looks. JSON has everything that is published, counters as they are, one document a
    line with --watch. Reading never disturbs a job. Exit code 0: shown; 1: no page could be read;
    3: needs root.

    \b
    harpctl stats                      all jobs and instances, once
    harpctl stats --watch              like top
    harpctl stats --nic eth1 --all     every statistic of eth1's instances
    harpctl stats -o json | jq '.instances[].counters.tcp_retransmits'
    harpctl stats -o json | jq '.jobs[].counters.lanes_replaced'
    """
    source, wanted = Source(), _filter(nic, queue, pid)

    def look() -> Sight:
        return wanted(source.look(flows=output == "json"))

    def draw(sight: Sight, seen: Sequence[tuple[Rates, Instance]], live: bool) -> RenderableType:
        jobs = lanes_view.jobs_table(sight)
        parts: list[RenderableType] = [] if jobs is None else [jobs, *lanes_view.job_notes(sight)]
        if seen:
            parts += ["", view.stats_view(sight, seen, live=live)]
        return Group(*parts)

    if watch:
        instances = _Watch()
        document = sight_document if output == "json" else None
        repeat(look, lambda s: draw(s, instances.rates(s), True), interval, document)
        return
    sight = look()
    _explain(sight, source, filtered=(nic, queue, pid) != (None, None, None))
    if output == "json":
        console.print_json(sight_document(sight))
    elif everything:
        for job in sight.jobs:
            if any(job.snapshot.counters.tolist()):
                console.print_whole(lanes_view.all_job_counters(job), WIDE)
        for each in sight.instances:
            console.print_whole(view.all_counters(each), WIDE)
            if (of_driver := view.all_xstats(each)) is not None:
                console.print_whole(of_driver, WIDE)
    elif sight.instances or sight.jobs:
        fresh = [(Rates(None, each.snapshot, 0), each) for each in sight.instances]
        console.print_whole(draw(sight, fresh, False), WIDE)


class _Peers(click.ParamType):  # type: ignore[type-arg]
    """An address or a network: 10.0.0.2, fd00::/64."""

    name = "ADDRESS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> lanes_view.Network:
        try:
            return ipaddress.ip_network(value, strict=False)
        except ValueError:
            self.fail(f"{value!r} is neither an address nor a network such as 10.0.0.0/24")


@click.command()
@_options
@click.option("--peer", type=_Peers(), help="Only with this peer: an address or a network.")
@click.option("--flat", is_flag=True, help="HARP's TCP connections one by one, lanes or not.")
@click.option("--wide", is_flag=True, help="All columns of connections.")
def flows(
    nic: str | None,
    queue: int | None,
    pid: int | None,
    interval: float,
    watch: bool,
    output: str,
    peer: lanes_view.Network | None,
    flat: bool,
    wide: bool,
) -> None:
    """Show lanes by peer and comm, with bytes, round trips and losses; and other connections.

    A comm is one of NCCL's connections, a lane one of its streams, HARP's or the kernel's. Jobs
    over kernel lanes alone are here too, with and without harpd. carried: bytes of messages, so far
    or (--watch) a second. moved: chunks taken from the lane (-) and from others (+); twice: chunks
    that came again. --flat: HARP's connections with their windows, as their stacks see them, lanes
    or not. JSON has both; docs/metrics.md describes it. Exit code 0: shown; 1: no page could be
    read; 2: no address of a peer; 3: needs root.

    \b
    harpctl flows
    harpctl flows --watch --interval 0.5 --pid 4711 --peer 10.0.0.0/24
    harpctl flows --flat --wide --nic eth1
    harpctl flows -o json | jq '.jobs[].comms[].lanes[] | .state'
    """
    source, wanted = Source(), _filter(nic, queue, pid)

    def look() -> Sight:
        sight = wanted(source.look(flows=True))
        return sight if peer is None else lanes_view.of_peers(sight, peer)

    seen = _LaneWatch()

    def draw(sight: Sight) -> RenderableType:
        if flat or queue is not None:
            return view.flows_view(sight, wide=wide)
        return lanes_view.lanes_view(sight, seen.rates(sight), wide=wide)

    if watch:
        repeat(look, draw, interval, sight_document if output == "json" else None)
        return
    sight = look()
    _explain(sight, source, filtered=(nic, queue, pid, peer) != (None,) * 4)
    if output == "json":
        console.print_json(sight_document(sight))
    elif sight.instances or sight.jobs:
        console.print_whole(draw(sight), WIDE)
