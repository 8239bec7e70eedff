# SPDX-License-Identifier: Apache-2.0
"""Shell completion of values: interfaces, settings, processes. A failure completes nothing."""

import contextlib
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from harp.errors import HarpError

_INTERFACES = Path("/sys/class/net")
_CONGESTION = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


def complete_interface(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a network interface of this host."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = sorted(path.name for path in _INTERFACES.iterdir() if path.is_dir())
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def complete_congestion(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete a congestion control of this kernel."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = sorted(_CONGESTION.read_text().split())
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def complete_key(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete a setting: a table (tcp), a key (tcp.ecn) or a variable (HARP_ECN)."""
    from harp.config.keys import all_keys, tables

    helps = {key.place: key.help for key in all_keys()}
    helps |= {key.variable: key.help for key in all_keys() if key.variable}
    helps |= dict.fromkeys(tables(), "")
    return [
        CompletionItem(name, help=text)
        for name, text in sorted(helps.items())
        if name.startswith(incomplete)
    ]


def complete_assignment(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete KEY= of KEY=VALUE, then the values of a key that has a list of them."""
    from harp.config.keys import Type, find

    name, equals, value = incomplete.partition("=")
    if not equals:
        items = complete_key(ctx, param, name)
        return [CompletionItem(f"{item.value}=") for item in items if find(item.value)]
    key = find(name)
    words = ("true", "false") if key and key.type is Type.BOOL else key.words if key else ()
    return [CompletionItem(f"{name}={word}") for word in words if word.startswith(value)]


def complete_pid(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the number of a process that publishes statistics."""
    from harp.daemon.client import understood
    from harp.stats.source import Source

    names: dict[str, str] = {}
    with contextlib.suppress(HarpError, OSError), understood():
        seen = Source().look(flows=False)
        names = {str(each["pid"]): each["comm"] for each in (*seen["instances"], *seen["jobs"])}
    return [
        CompletionItem(pid, help=name)
        for pid, name in sorted(names.items())
        if pid.startswith(incomplete)
    ]
