# SPDX-License-Identifier: Apache-2.0
"""harp-tcp on DPDK ports: each end of a stream is a process with its own environment."""

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from netns_tools import Tools, outcome

WAIT_S = 120
# Other tests' devices and huge pages are left alone.
ENVIRONMENT = {"HARP_DPDK_ARGS": "--no-pci", "HARP_DPDK_HUGE_PAGES": "never"}


class Here:
    """This namespace, in place of a host of the laboratory."""

    def popen(self, args: Sequence[str | Path]) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            args,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | ENVIRONMENT,
        )


HERE: Any = Here()


class Ends(Tools):
    """Starts harp-tcp and collects its reports."""

    @property
    def library(self) -> Path:
        """The folder of libharp-dpdk.so."""
        return self.build / "dataplane" / "dpdk"

    def command(self, verb: str, address: str, spec: str | None, *more: str) -> list[str | Path]:
        """harp-tcp on a port, or the kernel's (None)."""
        side: list[str | Path] = ["--kernel"]
        if spec is not None:
            side = ["--ifname", f"dpdk:{spec}", "--lib-dir", self.library]
        settings = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
        return ["env", *settings, self.tcp, verb, address, "7000", *side, *more, "-o", "json"]

    def serve_port(
        self, address: str, spec: str | None, *more: str, verb: str = "serve", host: Any = HERE
    ) -> "subprocess.Popen[str]":
        """A server that is ready."""
        return self.serve(host, self.command(verb, address, spec, *more))

    def call(self, verb: str, address: str, spec: str | None, *more: str, host: Any = HERE) -> Any:
        """The report of a client, which must succeed."""
        out, err, status = outcome(host, self.command(verb, address, spec, *more), WAIT_S)
        assert status == 0, err
        return json.loads(out)

    def refused(self, spec: str, host: Any = HERE) -> str:
        """The last line of a client that cannot open its port."""
        _, err, status = outcome(host, self.command("send", "10.9.0.1", spec), WAIT_S)
        assert status == 1, err
        return err.strip().splitlines()[-1]


def finish(server: "subprocess.Popen[str]") -> tuple[list[Any], str]:
    """The reports and the stderr of a server that ends by itself."""
    out, err = server.communicate(timeout=WAIT_S)
    assert server.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()], err


def memif(role: str, folder: Path, number: int, mtu: int = 1500, more: str = "") -> str:
    """A port on one end of a memif; addresses 10.9.0.N and fd00:9::N."""
    device = f"net_memif0,role={role},socket={folder}/memif.sock"
    return f"{device};ip=10.9.0.{number}/24;ip=fd00:9::{number}/64;mtu={mtu}{more}"


def other_dpdk(library: Path, folder: Path) -> Path:
    """A folder for LD_LIBRARY_PATH with a DPDK without the symbols that the library needs."""
    listed = subprocess.run(
        ["readelf", "-d", library], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"librte_ethdev\.so\.[0-9.]+", listed)
    assert found, listed
    name = found[0]
    stub = ("gcc", "-shared", f"-Wl,-soname,{name}", "-x", "c", os.devnull, "-o", folder / name)
    subprocess.run(stub, check=True)
    return folder
