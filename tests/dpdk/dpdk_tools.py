# SPDX-License-Identifier: Apache-2.0
"""harp-tcp on DPDK ports: each end of a stream is a process with its own environment."""

import json
import os
import re
import select
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

READY_S = 30
WAIT_S = 120
Popen = Callable[..., "subprocess.Popen[str]"]
# Other tests' devices and huge pages are left alone.
ENVIRONMENT = {"HARP_DPDK_ARGS": "--no-pci", "HARP_DPDK_HUGE_PAGES": "never"}


def start(
    args: Sequence[str | Path], environment: dict[str, str] | None = None
) -> "subprocess.Popen[str]":
    """A process in this namespace, with the signature of Host.popen()."""
    return subprocess.Popen(
        args,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | ENVIRONMENT | (environment or {}),
    )


@dataclass
class Ends:
    """Starts harp-tcp and collects its reports."""

    build: Path
    started: list["subprocess.Popen[str]"] = field(default_factory=list)

    @property
    def library(self) -> Path:
        """The folder of libharp-dpdk.so."""
        return self.build / "dataplane" / "dpdk"

    def command(self, verb: str, address: str, spec: str | None, *more: str) -> list[str | Path]:
        """harp-tcp on a port, or the kernel's (None)."""
        side: list[str | Path] = ["--kernel"]
        if spec is not None:
            side = ["--ifname", f"dpdk:{spec}", "--lib-dir", self.library]
        tool = self.build / "tools" / "tcp" / "harp-tcp"
        return [tool, verb, address, "7000", *side, *more]

    def serve(
        self, address: str, spec: str | None, *more: str, verb: str = "serve", run: Popen = start
    ) -> "subprocess.Popen[str]":
        """A server that is ready."""
        server = run([*self.command(verb, address, spec, *more), "-o", "json"])
        self.started.append(server)
        assert server.stdout is not None
        if not select.select([server.stdout], [], [], READY_S)[0]:
            pytest.fail(f"{spec}: not ready after {READY_S} s")
        if server.stdout.readline() != "ready\n":
            pytest.fail(f"{spec}: {server.communicate()[1]}")
        return server

    def call(
        self, verb: str, address: str, spec: str | None, *more: str, run: Popen = start
    ) -> tuple[Any, str]:
        """A client that must succeed: its report and its stderr."""
        client = run([*self.command(verb, address, spec, *more), "-o", "json"])
        self.started.append(client)
        out, err = client.communicate(timeout=WAIT_S)
        assert client.returncode == 0, err
        return json.loads(out), err

    def refused(
        self, spec: str, environment: dict[str, str] | None = None, run: Popen = start
    ) -> str:
        """The last line of a client that cannot open its port."""
        client = run(self.command("send", "10.9.0.1", spec), environment)
        self.started.append(client)
        _, err = client.communicate(timeout=WAIT_S)
        assert client.returncode == 1, err
        return err.strip().splitlines()[-1]

    def close(self) -> None:
        """Kill what a failed test left running."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.communicate()


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
