# SPDX-License-Identifier: Apache-2.0
"""HARP's control plane: command line, test hosts, benchmarks, bindings to the C stack.

Public names load on first use: harp.Instance, harp.Endpoint, harp.Driver, harp.Stack and so on
(docs/python.md). harp.testing has helpers for tests and scapy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from harp import _paths

if TYPE_CHECKING:
    from harp._core import SSTHRESH_NONE as SSTHRESH_NONE
    from harp._core import Connection as Connection
    from harp._core import Event as Event
    from harp._core import Frame as Frame
    from harp._core import Listener as Listener
    from harp._core import Stack as Stack
    from harp._core import UdpSocket as UdpSocket
    from harp._core import stat_names as stat_names
    from harp._drive import Acceptor as Acceptor
    from harp._drive import Driver as Driver
    from harp._drive import Endpoint as Endpoint
    from harp._drive import Source as Source
    from harp._drive import WaitTimeoutError as WaitTimeoutError
    from harp._instance import Instance as Instance
    from harp._job import env as env
    from harp._job import nccl_plugin_path as nccl_plugin_path
    from harp._nic import CallbackNic as CallbackNic
    from harp._nic import Nic as Nic
    from harp._nic import Wire as Wire
    from harp.errors import HarpError as HarpError

__version__ = "0.1.0"

# In a source tree the compiled modules are in the build tree; $HARP_BUILD selects another one.
if (_build := _paths.build_dir()) is not None:
    __path__.append(str(_build / "harp"))

# The public names of each module. No compiled module is loaded before it is used.
_NAMES = {
    "harp._core": (
        "SSTHRESH_NONE",
        "Connection",
        "Event",
        "Frame",
        "Listener",
        "Stack",
        "UdpSocket",
        "stat_names",
    ),
    "harp._drive": ("Acceptor", "Driver", "Endpoint", "Source", "WaitTimeoutError"),
    "harp._instance": ("Instance",),
    "harp._job": ("env", "nccl_plugin_path"),
    "harp._nic": ("CallbackNic", "Nic", "Wire"),
    "harp.errors": ("HarpError",),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}
if not TYPE_CHECKING:
    __all__ = ["__version__", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'harp' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
