# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile: its stages fit together, and buildah builds them. The Kubernetes manifests are
valid and grant no more privileges than documented."""

import re
import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from build_trees import output

from harp import config
from harp.config.keys import find


def test_stages_come_from_earlier_ones(root_dir: Path) -> None:
    text = (root_dir / "Dockerfile").read_text()
    stages = re.findall(r"^FROM (\S+) AS (\S+)$", text, re.MULTILINE)
    assert [name for _, name in stages] == ["build", "harpd", "plugin", "job"]
    assert set(re.findall(r"--from=(\S+)", text)) <= {name for _, name in stages}
    (target,) = re.findall(r"^RUN make (\S+)", text, re.MULTILINE)
    assert f"\n{target}:" in (root_dir / "Makefile").read_text()
    ignored = (root_dir / ".dockerignore").read_text().split()
    assert {".git", ".venv", "build", "build-*", "dist"} <= set(ignored)


@pytest.mark.long
def test_buildah_builds_the_images(
    root_dir: Path,
    debian_base: Path,
    wheelhouse: Path,
    wheel: Path,
    tmp_path: Path,
    need_root: None,
) -> None:
    """A Makefile in the context provides the wheel, and the base image its dependencies."""
    if shutil.which("buildah") is None:
        pytest.skip("needs buildah: apt-get install buildah")
    policy = tmp_path / "policy.json"
    policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    context = tmp_path / "context"
    context.mkdir()
    shutil.copy(wheel, context)
    (context / "Makefile").write_text("wheel:\n\tmkdir dist && cp *.whl dist/\n")
    storage = ("--root", tmp_path / "storage", "--runroot", tmp_path / "run")

    def buildah(command: str, *arguments: str | Path) -> str:
        options = ["--signature-policy", policy] if command in ("bud", "commit", "from") else []
        prefix = ["buildah", *storage, "--storage-driver", "overlay", command, *options]
        return output([*prefix, *arguments], env={"BUILDAH_ISOLATION": "chroot"}, timeout_s=900)

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


# --------------------------------------------------------------------------------------------------
# Kubernetes.
#
MANIFESTS = ("conf/kubernetes/harpd.yaml", "conf/kubernetes/job.yaml", "conf/dpdk-pod.yaml")
VERSIONS = ("1.28", "1.32", kubernetes_validate.latest_version())


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def of_kind(root_dir: Path, manifest: str, kind: str) -> dict[str, Any]:
    (document,) = [
        document for document in documents(root_dir / manifest) if document["kind"] == kind
    ]
    return document


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", MANIFESTS)
def test_manifests_are_valid(root_dir: Path, manifest: str, version: str) -> None:
    for document in documents(root_dir / manifest):
        kubernetes_validate.validate(document, version, strict=True)


def test_an_invalid_manifest_is_found(root_dir: Path) -> None:
    pod = of_kind(root_dir, "conf/kubernetes/job.yaml", "Pod")
    pod["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("manifest", MANIFESTS[1:])
def test_a_job_sees_only_the_socket_of_the_host(root_dir: Path, manifest: str) -> None:
    """It mounts the folder: the socket's file would be that of a harpd that has ended."""
    spec = of_kind(root_dir, manifest, "Pod")["spec"]
    daemon = of_kind(root_dir, "conf/kubernetes/harpd.yaml", "DaemonSet")["spec"]["template"]
    text = of_kind(root_dir, "conf/kubernetes/harpd.yaml", "ConfigMap")["data"]["harp.toml"]
    settings = config.parse(text, "harp.toml")  # raises ConfigError if invalid
    socket = Path(settings["HARP_SOCKET"])
    (container,) = spec["containers"]

    (host,) = [entry["hostPath"]["path"] for entry in spec["volumes"] if "hostPath" in entry]
    assert host == str(socket.parent)
    assert host != settings["HARP_RUN_DIR"]
    shared = [
        entry["hostPath"]["path"] for entry in daemon["spec"]["volumes"] if "hostPath" in entry
    ]
    assert set(shared) == {host, settings["HARP_RUN_DIR"]}
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    assert variables["HARP_SOCKET"] == str(socket)
    assert all(find(name) for name in variables if name.startswith("HARP_"))


def test_a_job_without_dpdk_has_no_privileges(root_dir: Path) -> None:
    spec = of_kind(root_dir, "conf/kubernetes/job.yaml", "Pod")["spec"]
    text = of_kind(root_dir, "conf/kubernetes/harpd.yaml", "ConfigMap")["data"]["harp.toml"]
    settings = config.parse(text, "harp.toml")
    (container,) = spec["containers"]
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert str(spec["securityContext"]["runAsUser"]) in settings["HARP_USERS"]
