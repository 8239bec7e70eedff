# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile: its stages run in copies of a Debian 12; where there is buildah, it builds it."""

import re
import shutil
from pathlib import Path

import pytest
from build_trees import output
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


@pytest.mark.long
def test_buildah_builds_the_images(
    root_dir: Path,
    debian_base: Path,
    wheelhouse: Path,
    wheel: Path,
    tmp_path: Path,
    need_root: None,
) -> None:
    """The Dockerfile as it is. Its context has a Makefile whose `wheel` is the one of these tests;
    pip takes what it needs from a folder of the base image."""
    if shutil.which("buildah") is None:
        pytest.skip("apt-get install buildah")
    policy = tmp_path / "policy.json"
    policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    context = tmp_path / "context"
    context.mkdir()
    shutil.copy(wheel, context)
    (context / "Makefile").write_text("wheel:\n\tmkdir dist && cp *.whl dist/\n")
    storage = ("--root", tmp_path / "storage", "--runroot", tmp_path / "run")

    def buildah(command: str, *arguments: str | Path) -> str:
        options = ["--signature-policy", policy] if command in ("bud", "commit", "from") else []
        words = ["buildah", *storage, "--storage-driver", "overlay", command, *options]
        return output([*words, *arguments], env={"BUILDAH_ISOLATION": "chroot"}, timeout_s=900)

    def run(image: str, *command: str) -> str:
        container = buildah("from", "--pull-never", f"localhost/{image}").strip()
        return buildah("run", container, "--", *command)

    try:
        container = buildah("from", "scratch").strip()
        root = Path(buildah("mount", container).strip())
        output(["cp", "-a", f"{debian_base}/.", root])
        shutil.copytree(wheelhouse, root / "wheelhouse")
        (root / "etc/pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheelhouse\n")
        for name in ("debian:12", "debian:12-slim"):
            buildah("commit", "--quiet", container, f"docker.io/library/{name}")
        build = ["bud", "--quiet", "--pull-never", "--file", root_dir / "Dockerfile"]
        buildah(*build, "--target", "harpd", "--tag", "harpd", context)
        buildah(*build, "--target", "job", "--tag", "train", context)
        entrypoint = ("--type", "image", "--format", "{{.OCIv1.Config.Entrypoint}}")
        assert "[/usr/local/bin/harpd]" in buildah("inspect", *entrypoint, "localhost/harpd")
        assert "v12" in run("harpd", "harpctl", "version")
        assert "Serves in the foreground" in run("harpd", "/usr/local/bin/harpd", "--help")
        assert "=> /usr/local/lib/libnccl-net.so" in run("train", "/sbin/ldconfig", "-p")
        assert run("train", "ls", "/opt") == ""
    finally:
        buildah("rm", "--all")
        buildah("rmi", "--all", "--force")
