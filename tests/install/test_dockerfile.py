# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile: its stages run in copies of a Debian 12, without a container runtime."""

import re
from pathlib import Path

import pytest
from debian import Debian
from dockerfile import Builder, Image, parse


def test_stages_and_paths(root_dir: Path) -> None:
    """Stages are made from those before them; each file that is named is there."""
    stages = parse((root_dir / "Dockerfile").read_text(), {"JOB_IMAGE": "debian:12"})
    assert [stage.name for stage in stages] == ["build", "harpd", "plugin", "job"]
    for number, stage in enumerate(stages):
        before = {each.name for each in stages[:number]}
        assert stage.base in before or stage.base.startswith("debian:12")
        origins = re.findall(r"--from=(\S+)", " ".join(words for _, words in stage.steps))
        assert set(origins) <= before
    (target,) = [words for _, words in stages[0].steps if words.startswith("make wheel")]
    assert f"\n{target.split()[1]}:" in (root_dir / "Makefile").read_text()
    ignored = (root_dir / ".dockerignore").read_text().split()
    assert {".git", ".venv", "build", "build-*", "dist"} <= set(ignored)


@pytest.mark.long
def test_every_step_runs(
    root_dir: Path,
    debian_base: Path,
    wheelhouse: Path,
    wheel: Path,
    tmp_path: Path,
    need_root: None,
) -> None:
    """`make wheel` is replaced by the wheel that it made for these tests; what pip downloads comes
    from a folder. All else runs as it is written."""

    def make_wheel(image: Image) -> None:
        image.debian.copy(wheel, "/src/dist")

    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"/{wheelhouse.name}"}
    base = Debian(debian_base, tmp_path / "base")
    base.copy(wheelhouse, "/")
    replaced = {"make wheel": make_wheel}
    builder = Builder(base.root, tmp_path, root_dir, env, replaced)
    try:
        for stage in parse((root_dir / "Dockerfile").read_text(), {}):
            builder.build(stage)
        assert not replaced
        daemon, job = builder.images["harpd"], builder.images["job"]
        assert "Serves in the foreground" in daemon.debian.run(*daemon.entrypoint, "--help")
        assert "v12" in daemon.debian.run("harpctl", "version")
        cache = job.debian.run("/sbin/ldconfig", "-p")
        assert "=> /usr/local/lib/libnccl-net.so" in cache
        assert "=> /usr/local/lib/libnccl-net-harp.so" in cache
        assert not (job.debian.root / "opt/harp").exists()
    finally:
        builder.close()
        base.close()
