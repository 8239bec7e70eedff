# SPDX-License-Identifier: Apache-2.0
"""The environment that makes a job use HARP."""

from collections.abc import Mapping
from pathlib import Path

from harp.config.model import Config
from harp.errors import HarpError

# What NCCL takes (net.cc): a list with commas between, each entry at most 254 bytes.
_NAME_BYTES_MAX = 254
_PLUGIN_PREFIX, _PLUGIN_SUFFIX = "libnccl-net-", ".so"


def plugin_variables(
    plugin: Path, environ: Mapping[str, str], by_name: bool = False
) -> dict[str, str]:
    """The variables by which NCCL finds and takes this very plugin.

    Its path, which NCCL gives to dlopen as it is; by_name, and where NCCL would misread the path,
    its name with its directory first on the loader's path, which every version of NCCL understands.
    """
    path = str(plugin)
    found = {"NCCL_NET_PLUGIN": path, "NCCL_NET": "HARP"}
    if by_name or "," in path or len(path.encode()) > _NAME_BYTES_MAX:
        name, directory = plugin.name, str(plugin.parent)
        if not (name.startswith(_PLUGIN_PREFIX) and name.endswith(_PLUGIN_SUFFIX)):
            raise HarpError(f"NCCL can't find {path} by name: it must be called libnccl-net-*.so")
        if ":" in directory or ";" in directory:
            raise HarpError(
                f"neither NCCL nor the loader takes {path}: move it where no , : ; is in the path"
            )
        found["NCCL_NET_PLUGIN"] = name.removeprefix(_PLUGIN_PREFIX).removesuffix(_PLUGIN_SUFFIX)
        before = environ.get("LD_LIBRARY_PATH", "")
        found["LD_LIBRARY_PATH"] = f"{directory}:{before}" if before else directory
    return found


def variables(
    config: Config, plugin: Path, environ: Mapping[str, str], by_name: bool = False
) -> dict[str, str]:
    """All of a job's: NCCL's, and what the file or the command line says to jobs.

    What environ has already is left out: it beats the file (but not a command line).
    """
    found = plugin_variables(plugin, environ, by_name)
    found |= {name: value.text for name, value in sorted(config.job_values().items())}
    # A harpd elsewhere than usual: jobs don't know its directory, only its socket.
    run_dir = config.values["HARP_RUN_DIR"]
    if run_dir.source.kind == "file" and not run_dir.is_default and not config["HARP_SOCKET"]:
        found["HARP_SOCKET"] = str(config.daemon.socket_path)
    return found
