# SPDX-License-Identifier: Apache-2.0
"""No file includes a layer it must not know; and the checker that says so would notice."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKER = ROOT / "tools" / "check_layers.py"


def check(root: Path) -> subprocess.CompletedProcess[str]:
    """Runs the checker on a tree."""
    return subprocess.run(
        [sys.executable, str(CHECKER), str(root)], capture_output=True, text=True, check=False
    )


def test_tree_keeps_the_rule() -> None:
    done = check(ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture
def small_tree(tmp_path: Path) -> Path:
    """One header per folder, each including what it may."""
    for name in (
        "dataplane/include/harp.h",
        "dataplane/include/harp_host.h",
        "dataplane/base/rng.h",
        "dataplane/base/thread.h",
        "dataplane/memory/frame.h",
        "dataplane/nic/nicio.h",
        "dataplane/nic/af_xdp_link.h",
        "dataplane/link/eth.h",
        "dataplane/network/ip.h",
        "dataplane/transport/tcp.h",
        "dataplane/socket/socket.h",
        "dataplane/stack/stack.h",
        "dataplane/host/library.h",
        "dataplane/host/netlink.h",
        "dataplane/xdp/harp_xdp.h",
        "plugin/plugin.h",
        "harp/_core/own.h",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("/* nothing */\n")
    good = {
        "dataplane/base/addr.c": ["harp.h", "base/rng.h"],
        "dataplane/network/ip.c": ["network/ip.h", "link/eth.h", "base/rng.h", "harp.h"],
        "dataplane/stack/stack.c": ["transport/tcp.h", "stack.h"],
        "dataplane/host/open.c": ["host/netlink.h", "harp_host.h", "nic/af_xdp_link.h"],
        "dataplane/xdp/xdp.c": ["xdp/harp_xdp.h", "base/rng.h"],
        "plugin/comm/comm.c": ["plugin.h", "harp.h", "harp_host.h", "stdio.h", "base/thread.h"],
    }
    for name, includes in good.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("".join(f'#include "{h}"\n' for h in includes))
    return tmp_path


def test_small_tree_is_good(small_tree: Path) -> None:
    assert check(small_tree).stdout == ""


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("dataplane/base/rng.c", '#include "memory/frame.h"'),
        ("dataplane/memory/frame.c", '#include "nic/nicio.h"'),
        ("dataplane/nic/nicio.c", "#include <link/eth.h>"),
        ("dataplane/link/eth.c", '  #  include "network/ip.h"'),
        ("dataplane/link/neigh.c", '#include "../network/ip.h"'),
        ("dataplane/network/icmp.c", '#include "transport/tcp.h"'),
        ("dataplane/transport/tcp.c", '#include "stack/stack.h"'),
        ("dataplane/socket/conn.c", '#include "host/netlink.h"'),
        ("dataplane/stack/api.c", '#include "harp_host.h"'),
        ("dataplane/stack/api.c", '#include "../../plugin/plugin.h"'),
        ("dataplane/host/check.c", '#include "nic/nicio.h"'),
        ("dataplane/host/check.c", '#include "stack/stack.h"'),
        ("dataplane/xdp/load.c", '#include "host/library.h"'),
        ("plugin/lane/lane.c", '#include "base/rng.h"'),
        ("plugin/lane/lane.c", '#include "transport/tcp.h"'),
        ("harp/_core/stack.pxd", 'cdef extern from "stack/stack.h" nogil:'),
        ("harp/_core/stack.c", '#include "plugin.h"'),
        ("harp/_stack.pxd", 'cdef extern from "stack/stack.h" nogil:'),
        ("harp/native/drive.c", '#include "transport/tcp.h"'),
    ],
)
def test_planted_violation_is_found(small_tree: Path, file: str, line: str) -> None:
    (small_tree / file).parent.mkdir(exist_ok=True)
    (small_tree / file).write_text(f"/* one */\n{line}\n")
    done = check(small_tree)
    assert done.returncode == 1
    assert done.stdout.startswith(f"{file}:2: includes ")
    assert len(done.stdout.splitlines()) == 1


def test_new_folder_must_be_placed(small_tree: Path) -> None:
    (small_tree / "dataplane" / "misc").mkdir()
    (small_tree / "dataplane" / "misc" / "x.c").write_text('#include "stack/stack.h"\n')
    done = check(small_tree)
    assert done.returncode == 1
    assert "dataplane/misc: not in the layer rule" in done.stdout
