# SPDX-License-Identifier: Apache-2.0
"""The plugin compiles and links for aarch64. Nothing runs it: that needs a processor."""

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

PREFIX = "aarch64-linux-gnu-"
HEADER = Path("/usr/aarch64-linux-gnu/include/stdio.h")
PARTS = ("plugin/libplugin-core.a.p/", "dataplane/libharp-core.a.p/")


@pytest.mark.long
def test_the_plugin_compiles_for_aarch64(root_dir: Path, build_dir: Path, tmp_path: Path) -> None:
    compiler = shutil.which(f"{PREFIX}gcc")
    if compiler is None or not HEADER.is_file():
        pytest.skip("apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross")
    objects = []
    for entry in json.loads((build_dir / "compile_commands.json").read_text()):
        if not entry["output"].startswith(PARTS):
            continue
        words = shlex.split(entry["command"])
        target = tmp_path / f"{len(objects)}.o"
        flags = [word for word in words if word.startswith(("-I", "-D", "-O", "-W", "-std", "-f"))]
        command = [compiler, *flags, "-fPIC", "-pthread", "-c", entry["file"], "-o", target]
        subprocess.run(command, cwd=entry["directory"], check=True)
        objects.append(target)
    assert len(objects) > 100
    library = tmp_path / "libnccl-net-harp.so"
    link = [f"-Wl,--version-script={root_dir}/plugin/plugin.map", "-Wl,-z,defs", "-pthread", "-ldl"]
    subprocess.run([compiler, "-shared", "-o", library, *objects, *link], check=True)
    read = [f"{PREFIX}readelf", "--file-header", "--dyn-syms", "--wide", library]
    done = subprocess.run(read, capture_output=True, text=True, check=True)
    assert "AArch64" in done.stdout
    for version in range(6, 13):
        assert f" ncclNetPlugin_v{version}\n" in done.stdout
