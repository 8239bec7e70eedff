# SPDX-License-Identifier: Apache-2.0
"""Opens a DPDK port in a process of its own, because drivers may end their process and DPDK can't
be stopped. The port is configured, started only to see a NIC's link, and closed again.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_TIMEOUT_S = 60
_BUFFERS = 255  # enough to configure with
# A virtual device contacts its peer when it is started; a NIC's link shows the cable.
_STARTED_BUSES = ("pci",)


@dataclass(frozen=True)
class PortProbe:
    """The result of opening a port. error: the reason of a failure, in DPDK's or HARP's words."""

    error: str = ""
    missing: bool = False  # DPDK is missing
    info: Mapping[str, Any] = field(default_factory=dict)  # PortInfo, and DPDK's version
    link: Mapping[str, Any] = field(default_factory=dict)  # empty: the link was not examined


def probe(spec: str, arguments: str = "") -> PortProbe:
    """Open and close the port as a job with these DPDK arguments would. Never raises because of the
    port.
    """
    try:
        from harp.dpdk import worker
    except ImportError as error:
        return PortProbe(str(error).removeprefix("harp.dpdk: "), missing=True)
    root = Path(__file__).resolve().parent.parent.parent
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    options = {
        "start": {"args": arguments},
        "pool": {"count": _BUFFERS},
        "port": {"start": False},
        "run": {"buses": _STARTED_BUSES},
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", worker.__name__, "examine", spec, json.dumps(options)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )
    except subprocess.TimeoutExpired:
        return PortProbe(f"opening it did not end within {_TIMEOUT_S} s")
    words = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    if done.returncode == worker.REFUSED:
        return PortProbe(words[-1])
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        return PortProbe(f"its driver ended the process: {words[-1]}")
    return PortProbe(info=answer["info"], link=answer["link"])
