# SPDX-License-Identifier: Apache-2.0
"""The wheel for aarch64, cross-compiled on this host and run by the emulator QEMU."""

import re
import shlex
import shutil
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from build_trees import BUILD_S, output
from test_wheel import ADDED_TO_THE_WHEEL, IN_THE_WHEEL, USE_API

pytestmark = pytest.mark.long

TOOLS = {
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu",
    "qemu-aarch64-static": "qemu-user-static",
}


@dataclass
class Aarch64:
    """The wheel, installed in a directory, and the interpreter that imports it."""

    wheel: Path
    sysroot: Path
    site: Path

    def command(self, *arguments: str | Path, **variables: str) -> list[str | Path]:
        """Return a command line of Python. `variables` are set in it, not in the emulator."""
        environment = {"PYTHONPATH": str(self.site), "HARP_BUILD": "", **variables}
        options = [word for name, text in environment.items() for word in ("-E", f"{name}={text}")]
        python = self.sysroot / "usr/bin/python3.11"
        return ["qemu-aarch64-static", "-L", self.sysroot, *options, python, *arguments]

    def run(self, *arguments: str | Path, **variables: str) -> str:
        command = self.command(*arguments, **variables)
        return output(command, cwd=self.site.parent, timeout_s=600)


@pytest.fixture(scope="module")
def aarch64(root_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Aarch64:
    """Build the wheel with `tools/wheel.py --machine aarch64` and install it with pip."""
    missing = [package for program, package in TOOLS.items() if shutil.which(program) is None]
    if missing:
        pytest.skip(f"apt-get install {' '.join(missing)}")
    folder = tmp_path_factory.mktemp("aarch64")
    command = [sys.executable, root_dir / "tools/wheel.py", "--machine", "aarch64", folder]
    wheel = Path(output(command, timeout_s=BUILD_S).strip())
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in range(17, 37)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    site = folder / "lib/python"
    output([*pip, "--target", site, "--only-binary=:all:", *platforms, wheel], timeout_s=600)
    (site / "bin").rename(folder / "bin")  # where the wheel's RECORD has the commands
    return Aarch64(wheel, root_dir / "build-wheel/aarch64/sysroot", site)


def test_the_wheel_is_complete_and_for_aarch64(aarch64: Aarch64, tmp_path: Path) -> None:
    assert re.search(r"-cp311-cp311-manylinux_2_\d+_aarch64\.whl$", aarch64.wheel.name)
    names = {
        re.sub(r"^harp_nccl-[\d.]+\.data/data/", "", name)
        for name in zipfile.ZipFile(aarch64.wheel).namelist()
    }
    assert not (IN_THE_WHEEL | ADDED_TO_THE_WHEEL) - names
    zipfile.ZipFile(aarch64.wheel).extractall(tmp_path)
    programs = [*tmp_path.glob("harp/**/*.so*"), *tmp_path.glob("harp/bin/*")]
    assert len(programs) > 18
    for path in programs:
        assert "AArch64" in output(["readelf", "--file-header", path]), path


def test_nccl_finds_the_tables_of_the_plugin(aarch64: Aarch64) -> None:
    """The plugin and the AF_XDP library load, and NCCL's symbols name HARP."""
    aarch64.run(
        "-c",
        "import ctypes, platform\n"
        "from harp import _paths\n"
        "assert platform.machine() == 'aarch64'\n"
        "library = ctypes.CDLL(str(_paths.plugin()))\n"
        "for version in range(6, 13):\n"
        "    table = ctypes.c_char_p.in_dll(library, f'ncclNetPlugin_v{version}')\n"
        "    assert table.value == b'HARP', version\n"
        "ctypes.CDLL(str(_paths.find(_paths.XDP_LIBRARY))).harp_xdp_api\n",
    )


def test_the_python_api_moves_data(aarch64: Aarch64) -> None:
    """Two stacks in one process."""
    aarch64.run("-c", USE_API)


def test_harpctl_installs_and_uninstalls_the_wheel(aarch64: Aarch64, tmp_path: Path) -> None:
    harpctl = ("-c", "from harp.cli import main; main()")
    assert "v12" in aarch64.run(*harpctl, "version")
    prefix = tmp_path / "prefix"
    aarch64.run(*harpctl, "install", "--prefix", str(prefix))
    header = output(["readelf", "--file-header", prefix / "lib/libnccl-net.so"])
    assert "AArch64" in header
    code = "import ctypes; ctypes.CDLL('libnccl-net.so').ncclNetPlugin_v12"
    aarch64.run("-c", code, LD_LIBRARY_PATH=str(prefix / "lib"))
    aarch64.run(*harpctl, "uninstall", "--prefix", str(prefix))
    assert not prefix.exists()


def test_two_ranks_reduce_an_array(root_dir: Path, aarch64: Aarch64, need_root: None) -> None:
    """They use kernel lanes over loopback in a network namespace."""
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    # No shared memory: ranks check that their peers live, and QEMU changes what they see.
    common |= {"HARP_PATH": "kernel", "HARP_IFNAME": "lo", "HARP_COLL_HOST": ""}
    program = root_dir / "examples/allreduce.py"
    ranks = [
        shlex.join(map(str, aarch64.command(program, RANK=rank, LOCAL_RANK=rank, **common)))
        for rank in "01"
    ]
    script = f"ip link set lo up; {ranks[1]} & {ranks[0]} && wait $!"
    text = output(["unshare", "--net", "sh", "-c", script], timeout_s=600)
    assert sorted(text.splitlines()) == [f"rank {rank} of 2: the sum is 3" for rank in "01"]
