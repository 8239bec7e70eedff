# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes manifests: valid, and no more privilege than the documents say."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from harp import config
from harp.config.keys import find

MANIFESTS = ("conf/kubernetes/harpd.yaml", "conf/kubernetes/job.yaml", "conf/dpdk-pod.yaml")
VERSIONS = ("1.28", "1.32", kubernetes_validate.latest_version())


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def of_kind(root_dir: Path, manifest: str, kind: str) -> dict[str, Any]:
    (found,) = [each for each in documents(root_dir / manifest) if each["kind"] == kind]
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", MANIFESTS)
def test_manifests_are_valid(root_dir: Path, manifest: str, version: str) -> None:
    for document in documents(root_dir / manifest):
        kubernetes_validate.validate(document, version, strict=True)


def test_a_mistake_is_found(root_dir: Path) -> None:
    pod = of_kind(root_dir, "conf/kubernetes/job.yaml", "Pod")
    pod["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, VERSIONS[-1], strict=True)


def test_the_job_has_harpds_socket_and_nothing_else_of_the_host(root_dir: Path) -> None:
    spec = of_kind(root_dir, "conf/kubernetes/job.yaml", "Pod")["spec"]
    daemon = of_kind(root_dir, "conf/kubernetes/harpd.yaml", "DaemonSet")["spec"]["template"]
    text = of_kind(root_dir, "conf/kubernetes/harpd.yaml", "ConfigMap")["data"]["harp.toml"]
    settings = config.parse(text, "harp.toml")  # or ConfigError
    socket = Path(settings["HARP_SOCKET"])
    (container,) = spec["containers"]

    (host,) = [each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each]
    assert host == str(socket.parent)
    assert host != settings["HARP_RUN_DIR"]
    shared = [each["hostPath"]["path"] for each in daemon["spec"]["volumes"] if "hostPath" in each]
    assert set(shared) == {host, settings["HARP_RUN_DIR"]}
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert variables["HARP_SOCKET"] == str(socket)
    assert all(find(name) for name in variables if name.startswith("HARP_"))
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert str(spec["securityContext"]["runAsUser"]) in settings["HARP_USERS"]
