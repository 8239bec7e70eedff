# SPDX-License-Identifier: Apache-2.0
"""A harpd for a test host, with its own run_dir, harp.toml and socket.

It runs in the host's network namespace and in the machine's mount namespace. With `ip netns exec`
it would have another mount namespace, whose bpffs and pins would vanish with harpd.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from harp.closing import Closing
from harp.errors import Exit, HarpError
from harp.lab import RUN_DIRS, Host, require_programs

_HARPCTL = "from harp.cli import main; main()"
Value = str | int | bool | Sequence[str]


def in_network(host: Host, args: Sequence[str | Path]) -> list[str]:
    """Return the command line that runs args in the host's network namespace only."""
    return ["nsenter", f"--net=/run/netns/{host.netns}", "--", *map(str, args)]


class LabHarpd(Closing):
    """A harpd on one host, from __enter__ to __exit__."""

    def __init__(
        self,
        host: Host,
        *,
        users: Sequence[str] = ("nobody",),
        daemon: Mapping[str, Value] | None = None,
        nic: Mapping[str, Value] | None = None,
        metrics_port: int = 0,
        more: str = "",
    ) -> None:
        self.host = host
        self.run_dir = RUN_DIRS / host.netns
        self.config = self.run_dir / "harp.toml"
        self.socket = self.run_dir / "harpd.sock"
        self.log = self.run_dir / "harpd.log"
        tables: dict[str, Mapping[str, Value]] = {
            "[daemon]": {"run_dir": str(self.run_dir), "users": users, **(daemon or {})},
            # The test hosts' veths support generic XDP only.
            "[[nic]]": {"ifname": host.ifname, "xdp_mode": "generic", **(nic or {})},
            "[metrics]": {"port": metrics_port},
        }
        lines = []
        for head, keys in tables.items():
            lines += [head, *(f"{key} = {json.dumps(value)}" for key, value in keys.items()), ""]
        self.text = "\n".join(lines) + more

    def __enter__(self) -> Self:
        require_programs("nsenter")
        self.run_dir.mkdir(mode=0o755, parents=True)
        try:
            self.config.write_text(self.text)
            self.harpctl("start")
        except BaseException:
            self.close()
            raise
        return self

    @property
    def environment(self) -> dict[str, str]:
        return {"HARP_CONFIG": str(self.config), "HARP_SOCKET": str(self.socket)}

    def outcome(
        self, args: Sequence[str | Path], timeout_s: float = 90
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the host's network, with this harpd's environment; return its result."""
        return subprocess.run(
            in_network(self.host, args),
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )

    def harpctl(self, *args: str) -> str:
        """Run harpctl with this harpd; return its output, HarpError if it fails."""
        done = self.outcome([sys.executable, "-c", _HARPCTL, *args])
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            reason = lines[-1].removeprefix("harpctl: ")
            raise HarpError(
                f"harpctl {' '.join(args)} on host {self.host.index}: {reason}",
                Exit(done.returncode),
            )
        return done.stdout

    def close(self) -> None:
        if not self.run_dir.exists():
            return
        with contextlib.suppress(HarpError, subprocess.TimeoutExpired):
            self.harpctl("stop", "--force")
        remove_run_dir(self.run_dir)


def remove_run_dir(run_dir: Path) -> None:
    """Remove the bpffs, with its pins, and the files of a dead harpd."""
    subprocess.run(["umount", "-l", run_dir / "bpf"], capture_output=True, check=False)
    shutil.rmtree(run_dir, ignore_errors=True)
    with contextlib.suppress(OSError):
        run_dir.parent.rmdir()
