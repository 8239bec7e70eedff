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
        "plugin/context/plugin.h",
        "plugin/comm/comm.h",
        "plugin/lane/lane.h",
        "plugin/wire/record.h",
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
        "plugin/comm/comm.c": [
            "comm/comm.h",
            "lane/lane.h",
            "harp.h",
            "harp_host.h",
            "stdio.h",
            "base/thread.h",
        ],
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
        ("dataplane/stack/api.c", '#include "../../plugin/context/plugin.h"'),
        ("dataplane/host/check.c", '#include "nic/nicio.h"'),
        ("dataplane/host/check.c", '#include "stack/stack.h"'),
        ("dataplane/xdp/load.c", '#include "host/library.h"'),
        ("plugin/lane/lane.c", '#include "base/rng.h"'),
        ("plugin/lane/lane.c", '#include "transport/tcp.h"'),
        ("plugin/lane/lane.c", '#include "comm/comm.h"'),
        ("plugin/wire/handle.c", '#include "lane/lane.h"'),
        ("plugin/comm/comm.h", '#include "context/plugin.h"'),
        ("harp/_core/stack.pxd", 'cdef extern from "stack/stack.h" nogil:'),
        ("harp/_core/stack.c", '#include "context/plugin.h"'),
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


def test_function_of_a_higher_folder_is_found(small_tree: Path) -> None:
    (small_tree / "plugin/comm/comm.c").write_text("int comm_close(void)\n{\n\treturn 0;\n}\n")
    (small_tree / "plugin/lane/lane.c").write_text(
        "int comm_close(void);\n\nint lane_close(void)\n{\n\treturn comm_close();\n}\n"
    )
    done = check(small_tree)
    assert done.returncode == 1
    (line,) = done.stdout.splitlines()
    assert line.startswith("plugin/lane/lane.c: uses functions of plugin/comm/comm.c")


@pytest.mark.parametrize("count", [3, 4])
def test_circle_of_files_is_found(small_tree: Path, count: int) -> None:
    for i in range(count):
        (small_tree / f"plugin/wire/part{i}.c").write_text(
            f"int part{i}(void)\n{{\n\treturn part{(i + 1) % count}();\n}}\n"
        )
    done = check(small_tree)
    assert done.returncode == (count > 3)
    assert ("4 files depend on each other in a circle" in done.stdout) == (count > 3)


def test_file_outside_of_the_layers_is_found(small_tree: Path) -> None:
    (small_tree / "plugin/other.c").write_text("/* nothing */\n")
    assert "plugin/other.c: files of the plugin lie in the folder" in check(small_tree).stdout


def test_new_folder_must_be_placed(small_tree: Path) -> None:
    (small_tree / "dataplane" / "misc").mkdir()
    (small_tree / "dataplane" / "misc" / "x.c").write_text('#include "stack/stack.h"\n')
    done = check(small_tree)
    assert done.returncode == 1
    assert "dataplane/misc: not in the layer rule" in done.stdout
