# SPDX-License-Identifier: Apache-2.0
"""HARP's control plane: command line, test hosts, benchmarks, bindings to the C stack.

Public names load on first use: harp.Instance, harp.Endpoint, harp.Driver, harp.Stack and so on
(docs/python.md). harp.testing has helpers for tests and scapy.
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from harp import _conflict, _paths

if TYPE_CHECKING:
    from harp._core import (
        SSTHRESH_NONE,
        Connection,
        Event,
        Frame,
        Listener,
        Stack,
        UdpSocket,
        flow_dtype,
        stat_names,
        stats_delta,
        stats_dtype,
    )
    from harp._drive import Acceptor, Driver, Endpoint, Source, WaitTimeoutError
    from harp._instance import Instance, steering_names
    from harp._job import env, nccl_plugin_path
    from harp._nic import CallbackNic, Nic, Wire
    from harp.errors import HarpError

__version__ = "0.1.0"
__all__ = [
    "SSTHRESH_NONE",
    "Acceptor",
    "CallbackNic",
    "Connection",
    "Driver",
    "Endpoint",
    "Event",
    "Frame",
    "HarpError",
    "Instance",
    "Listener",
    "Nic",
    "Source",
    "Stack",
    "UdpSocket",
    "WaitTimeoutError",
    "Wire",
    "__version__",
    "env",
    "flow_dtype",
    "nccl_plugin_path",
    "stat_names",
    "stats_delta",
    "stats_dtype",
    "steering_names",
]

if _conflict.other_distribution():
    warnings.warn(_conflict.problem(), ImportWarning, stacklevel=2)

# In a source tree the compiled modules are in the build tree; $HARP_BUILD selects another one.
if (_build := _paths.build_dir()) is not None:
    __path__.append(str(_build / "harp"))

# The module of each public name. No compiled module is loaded before it is used.
_MADE_IN = {
    "harp._core": (
        "SSTHRESH_NONE",
        "Connection",
        "Event",
        "Frame",
        "Listener",
        "Stack",
        "UdpSocket",
        "flow_dtype",
        "stat_names",
        "stats_delta",
        "stats_dtype",
    ),
    "harp._drive": ("Acceptor", "Driver", "Endpoint", "Source", "WaitTimeoutError"),
    "harp._instance": ("Instance", "steering_names"),
    "harp._job": ("env", "nccl_plugin_path"),
    "harp._nic": ("CallbackNic", "Nic", "Wire"),
    "harp.errors": ("HarpError",),
}
_HOME = {name: module for module, names in _MADE_IN.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'harp' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
