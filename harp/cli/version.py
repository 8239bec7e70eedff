# SPDX-License-Identifier: Apache-2.0
"""harpctl version."""

import ctypes
import platform
from collections.abc import Callable
from importlib import import_module
from typing import Any

import click

from harp import __version__, _paths
from harp import output as console
from harp.cli.options import output_option, show
from harp.errors import HarpError

_ABIS = range(1, 32)


def _available(function: Callable[[], Any]) -> dict[str, Any]:
    """Return {"value": ...}, or {"value": None, "why": ...} if the part is not available."""
    try:
        return {"value": function()}
    except (HarpError, ImportError, OSError, AttributeError) as error:
        return {"value": None, "why": str(error)}


def _plugin_abis() -> list[int]:
    plugin = ctypes.CDLL(str(_paths.plugin()))
    return [version for version in _ABIS if hasattr(plugin, f"ncclNetPlugin_v{version}")]


def _libbpf() -> str:
    from harp import _host

    _host.load_library(str(_paths.find(_paths.XDP_LIBRARY)))
    return _host.libbpf_version()


def versions() -> dict[str, Any]:
    return {
        "harp": {"value": __version__},
        "core": _available(lambda: str(import_module("harp._core").version())),
        "plugin": _available(lambda: str(_paths.plugin())),
        "plugin_abi": _available(_plugin_abis),
        "libbpf": _available(_libbpf),
        "dpdk": _available(lambda: import_module("harp.dpdk").version().removeprefix("DPDK ")),
        "kernel": {"value": platform.release()},
        "machine": {"value": platform.machine()},
        "python": {"value": platform.python_version()},
    }


def _text(part: dict[str, Any]) -> str:
    if part["value"] is None:
        return f"not available: {part['why']}"
    if isinstance(part["value"], list):
        return ", ".join(f"v{number}" for number in part["value"])
    return str(part["value"])


@click.command()
@output_option
def version(output: str) -> None:
    """Print the versions of HARP, its plugin, the kernel and libraries.

    \b
    harpctl version
    harpctl version -o json
    """
    show(versions(), output, _print)


def _print(report: dict[str, Any]) -> None:
    for name, part in report.items():
        console.print_line(f"{name.replace('_', ' '):11} {_text(part)}")
