# SPDX-License-Identifier: Apache-2.0
"""Runs harp-tcp on DPDK ports; each end of a stream is a process."""

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from netns_tools import Tools, outcome

WAIT_S = 120
# Does not use PCI devices or huge pages.
ENVIRONMENT = {"HARP_DPDK_ARGS": "--no-pci", "HARP_DPDK_HUGE_PAGES": "never"}


class LocalHost:
    """Starts processes in this namespace, like a host of the lab in its own."""

    def popen(self, args: Sequence[str | Path]) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            args,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | ENVIRONMENT,
        )


LOCAL_HOST: Any = LocalHost()


class DpdkTools(Tools):
    """Starts harp-tcp and collects its reports."""

    @property
    def library(self) -> Path:
        """The folder of libharp-dpdk.so."""
        return self.build / "dataplane" / "dpdk"

    def command(self, verb: str, address: str, spec: str | None, *more: str) -> list[str | Path]:
        """The harp-tcp command for a port; spec None: kernel TCP."""
        stack: list[str | Path] = ["--kernel"]
        if spec is not None:
            stack = ["--ifname", f"dpdk:{spec}", "--lib-dir", self.library]
        settings = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
        return ["env", *settings, self.tcp, verb, address, "7000", *stack, *more, "-o", "json"]

    def serve_port(
        self,
        address: str,
        spec: str | None,
        *more: str,
        verb: str = "serve",
        host: Any = LOCAL_HOST,
    ) -> "subprocess.Popen[str]":
        """Start a server and wait until it is ready."""
        return self.serve(host, self.command(verb, address, spec, *more))

    def run_client(
        self, verb: str, address: str, spec: str | None, *more: str, host: Any = LOCAL_HOST
    ) -> Any:
        """Run a client, which must succeed; return its report."""
        out, err, status = outcome(host, self.command(verb, address, spec, *more), WAIT_S)
        assert status == 0, err
        return json.loads(out)

    def open_error(self, spec: str, host: Any = LOCAL_HOST) -> str:
        """Run a client that cannot open its port; return the last line of its error."""
        _, err, status = outcome(host, self.command("send", "10.9.0.1", spec), WAIT_S)
        assert status == 1, err
        return err.strip().splitlines()[-1]


def finish(server: "subprocess.Popen[str]") -> tuple[list[Any], str]:
    """Wait until a server exits; return its reports and its stderr."""
    out, err = server.communicate(timeout=WAIT_S)
    assert server.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()], err


def memif(role: str, folder: Path, number: int, mtu: int = 1500, more: str = "") -> str:
    """A port on one end of a memif, with addresses 10.9.0.N and fd00:9::N."""
    device = f"net_memif0,role={role},socket={folder}/memif.sock"
    return f"{device};ip=10.9.0.{number}/24;ip=fd00:9::{number}/64;mtu={mtu}{more}"


def create_empty_dpdk(library: Path, folder: Path) -> Path:
    """Create a DPDK library without symbols in a folder for LD_LIBRARY_PATH."""
    dynamic = subprocess.run(
        ["readelf", "-d", library], capture_output=True, text=True, check=True
    ).stdout
    match = re.search(r"librte_ethdev\.so\.[0-9.]+", dynamic)
    assert match, dynamic
    name = match[0]
    command = ("gcc", "-shared", f"-Wl,-soname,{name}", "-x", "c", os.devnull, "-o", folder / name)
    subprocess.run(command, check=True)
    return folder
