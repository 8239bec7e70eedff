# SPDX-License-Identifier: Apache-2.0
"""harpctl stats and flows: what instances publish, once or again and again."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.live import Live

from harp import output as console
from harp.errors import Exit, HarpError
from harp.options import output_option
from harp.stats import view
from harp.stats.instance import Instance, Sight, sight_document
from harp.stats.rates import Rates
from harp.stats.source import Source

# A terminal's own width; else tables keep all their columns.
WIDE = Console(width=None if sys.stdout.isatty() else 240, highlight=False)
Filter = Callable[[Instance], bool]


def _filter(nic: str | None, queue: int | None, pid: int | None) -> Filter:
    def wanted(each: Instance) -> bool:
        identity = each.snapshot.identity
        return (
            (nic is None or identity.ifname == nic)
            and (queue is None or identity.queue == queue)
            and (pid is None or each.pid == pid)
        )

    return wanted


def _filtered(sight: Sight, wanted: Filter) -> Sight:
    kept = tuple(each for each in sight.instances if wanted(each))
    return Sight(kept, sight.hidden_processes, sight.bad)


def _explain(sight: Sight, source: Source) -> None:
    """What the table can't say, on stderr; HarpError when nothing could be seen at all."""
    for pid, why in sight.bad:
        console.err.print(f"harpctl: process {pid}: {why}", markup=False, soft_wrap=True)
    if sight.instances:
        return
    if sight.bad:
        raise HarpError("no page could be read")
    if sight.hidden_processes and not source.daemon:
        raise HarpError(
            "no instance of yours publishes statistics, other users' are root's to see; use sudo, "
            "or start harpd",
            Exit.PRIVILEGE,
        )
    console.err.print("harpctl: no instance publishes statistics on this host", markup=False)


def _beats(interval: float) -> Iterator[None]:
    """Now, and then every interval, whatever the work in between takes."""
    due = time.monotonic()
    while True:
        yield
        due += interval
        time.sleep(max(0.0, due - time.monotonic()))


class _Watch:
    """Rates between one look and the next."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, int, int], tuple[float, Instance]] = {}

    def rates(self, sight: Sight) -> list[tuple[Rates, Instance]]:
        """Each instance with what happened since it was last seen."""
        now_s = time.monotonic()
        seen = []
        for each in sight.instances:
            at_s, before = self._before.get(each.key, (now_s, None))
            earlier = before.snapshot if before is not None else None
            seen.append((Rates(earlier, each.snapshot, now_s - at_s), each))
        self._before = {each.key: (now_s, each) for each in sight.instances}
        return seen


def _json_line(sight: Sight) -> None:
    json.dump({"time_s": time.time(), **sight_document(sight)}, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()


def _watch(
    look: Callable[[], Sight],
    draw: Callable[[Sight], RenderableType],
    interval: float,
    as_json: bool,
) -> None:
    if as_json:
        for _ in _beats(interval):
            _json_line(look())
        return
    if not sys.stdout.isatty():
        for _ in _beats(interval):
            WIDE.print(draw(look()))
            sys.stdout.flush()
        return
    with Live(console=WIDE, auto_refresh=False, screen=True) as live:
        for _ in _beats(interval):
            live.update(draw(look()), refresh=True)


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--nic", metavar="NAME", help="Only instances on this NIC."),
        click.option("--queue", type=click.IntRange(0), help="Only instances on this queue."),
        click.option("--pid", type=click.IntRange(1), help="Only this process's instances."),
        click.option(
            "--interval",
            type=click.FloatRange(0.05),
            default=1.0,
            show_default=True,
            help="Seconds from one look to the next, with --watch.",
        ),
        click.option("--watch", "-w", is_flag=True, help="Again and again, until Ctrl-C."),
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
    """What the instances of this host do: packets, bytes, losses, round trips, drops by reason.

    Once: sums since each instance's start. With --watch: what happened between two looks. JSON has
    everything that instances publish, counters as they are, one document a line with --watch.
    Reading never disturbs a job. Exit code 0: shown; 1: no page could be read; 3: needs root.

    \b
    harpctl stats                      all instances, once
    harpctl stats --watch              like top
    harpctl stats --nic eth1 --all     every statistic of eth1's instances
    harpctl stats -o json | jq '.instances[].counters.tcp_retransmits'
    """
    source, wanted = Source(), _filter(nic, queue, pid)

    def look() -> Sight:
        return _filtered(source.look(flows=output == "json"), wanted)

    if watch:
        seen = _Watch()
        _watch(
            look, lambda s: view.stats_view(s, seen.rates(s), live=True), interval, output == "json"
        )
        return
    sight = look()
    _explain(sight, source)
    if output == "json":
        console.print_json(sight_document(sight))
    elif everything:
        for each in sight.instances:
            WIDE.print(view.all_counters(each))
    elif sight.instances:
        fresh = [(Rates(None, each.snapshot, 0), each) for each in sight.instances]
        WIDE.print(view.stats_view(sight, fresh, live=False))


@click.command()
@_options
@click.option("--wide", is_flag=True, help="All columns.")
def flows(
    nic: str | None,
    queue: int | None,
    pid: int | None,
    interval: float,
    watch: bool,
    output: str,
    wide: bool,
) -> None:
    """The connections of HARP's instances: state, windows, round trips, losses, what they are for.

    Exit code 0: shown; 1: no page could be read; 3: needs root.

    \b
    harpctl flows
    harpctl flows --watch --interval 0.5 --pid 4711
    harpctl flows -o json | jq '.instances[].flows[] | select(.retransmits > 0)'
    """
    source, wanted = Source(), _filter(nic, queue, pid)

    def look() -> Sight:
        return _filtered(source.look(flows=True), wanted)

    if watch:
        _watch(look, lambda s: view.flows_view(s, wide=wide), interval, output == "json")
        return
    sight = look()
    _explain(sight, source)
    if output == "json":
        console.print_json(sight_document(sight))
    elif sight.instances:
        WIDE.print(view.flows_view(sight, wide=wide))
