# SPDX-License-Identifier: Apache-2.0
"""The laboratory's harpds and containers: what a job can see and lease, and what remains."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from netns_tools import Tools, wait_until

from harp.errors import Exit, HarpError
from harp.lab import RUN_DIRS, Lab
from harp.lab.harpd import LabHarpd
from harp.lab.jail import Jail, library_dirs


@pytest.fixture
def harpd(lab: Lab) -> Iterator[LabHarpd]:
    # The process that makes a container's network keeps CAP_NET_ADMIN in it.
    with LabHarpd(lab.hosts[0], daemon={"allow_net_admin_containers": True}) as daemon:
        yield daemon


def jailed(jail: Jail, lab: Lab, code: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        jail.command(lab.hosts[0], [sys.executable, "-c", code, *args]),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


SEEN = """
import json, os, resource, socket
from pathlib import Path
status = dict(line.split(":\\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
writable = [str(path) for path in Path("/").iterdir() if os.access(path, os.W_OK)]
print(json.dumps({
    "ids": [os.getresuid(), os.getresgid(), os.getgroups()],
    "capabilities": [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd")],
    "no_new_privs": status["NoNewPrivs"],
    "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK),
    "run": [str(path) for path in Path("/run").rglob("*")],
    "writable": sorted(writable),
    "links": sorted(name for _, name in socket.if_nameindex()),
    "hostname": socket.gethostname(),
    "pid_1": Path("/proc/1/cmdline").read_text().split("\\0")[0],
    "sys": Path("/sys").exists(),
    "root_home": [path.name for path in Path("/root").iterdir()] if Path("/root").exists() else [],
}))
"""


def test_a_container_sees_the_socket_and_the_libraries(lab: Lab, harpd: LabHarpd) -> None:
    jail = Jail(socket=str(harpd.socket), readable=tuple(library_dirs()), own_network=True)
    done = jailed(jail, lab, SEEN)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["ids"] == [[65534] * 3, [65534] * 3, []]
    assert set(seen["capabilities"]) == {"0" * 16}
    assert (seen["no_new_privs"], seen["memlock"]) == ("1", [65536, 65536])
    assert sorted(seen["run"]) == ["/run/harp", "/run/harp/harpd.sock"]
    assert seen["writable"] == ["/tmp"]
    assert seen["links"] == ["lo"]
    assert seen["hostname"] == "container"
    assert not seen["sys"]
    assert set(seen["root_home"]) <= {".pyenv"}


LEASE = """
import harp, os, sys
with harp.Instance("eth0", label="in a container") as instance:
    print(instance.leased, instance.describe, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("own_network", [False, True])
def test_a_container_has_a_lease(lab: Lab, harpd: LabHarpd, own_network: bool) -> None:
    jail = Jail(socket=str(harpd.socket), readable=tuple(library_dirs()), own_network=own_network)
    command = jail.command(lab.hosts[0], [sys.executable, "-c", LEASE])
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None
        said = job.stdout.readline()
        assert said.startswith("True AF_XDP"), (said, job.stderr and job.stderr.read())
        (lease,) = json.loads(harpd.harpctl("instances", "-o", "json"))["instances"]
        assert (lease["uid"], lease["label"]) == (65534, "in a container")
        with pytest.raises(HarpError, match=r"leased: .*in a container") as caught:
            harpd.harpctl("stop")
        assert caught.value.code is Exit.RUNNING
        job.kill()
    wait_until(
        lambda: not json.loads(harpd.harpctl("instances", "-o", "json"))["instances"],
        "the lease is given back",
    )


def test_a_container_without_the_socket_has_none(lab: Lab) -> None:
    done = jailed(Jail(readable=tuple(library_dirs())), lab, LEASE)
    assert done.returncode == 1
    assert "PermissionError" in done.stderr.splitlines()[-1]


KILLED = """
import os, sys
from harp.lab import Lab
from harp.lab.harpd import LabHarpd
lab = Lab().__enter__()
harpd = LabHarpd(lab.hosts[0]).__enter__()
print(harpd.run_dir, flush=True)
sys.stdin.readline()
"""


def test_what_a_killed_laboratory_left_goes_with_the_next(tools: Tools) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        run_dir = Path(process.stdout.readline().strip())
        assert run_dir.parent == RUN_DIRS
        assert (run_dir / "harpd.sock").is_socket()
        process.send_signal(signal.SIGKILL)
    assert (run_dir / "bpf").is_mount()
    with Lab():
        assert not run_dir.exists()
    assert str(run_dir) not in Path("/proc/self/mountinfo").read_text()


def test_a_harpd_that_cannot_start_leaves_nothing(lab: Lab) -> None:
    host = lab.hosts[0]
    with (
        pytest.raises(HarpError, match="port_rest"),
        LabHarpd(host, daemon={"port_rest_ms": "soon"}),
    ):
        pass
    assert not (RUN_DIRS / host.netns).exists()
    assert os.path.exists(f"/run/netns/{host.netns}")  # noqa: PTH110 - a mount, not a file
