# SPDX-License-Identifier: Apache-2.0
"""The environment that makes a job use HARP."""

from collections.abc import Mapping
from pathlib import Path

from harp.config.model import Config
from harp.errors import HarpError

# NCCL's limits (net.cc): a list separated by commas, each entry at most 254 bytes.
_NAME_BYTES_MAX = 254
_PROFILER = "NCCL_PROFILER_PLUGIN"  # harp: libnccl-profiler-harp.so, next to the plugin
_PLUGIN_PREFIX, _PLUGIN_SUFFIX = "libnccl-net-", ".so"
_LOADER_SEPARATORS = set(":;")  # of LD_LIBRARY_PATH


def plugin_variables(plugin: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which NCCL finds exactly this plugin.

    The plugin's name, and its directory first in the loader's path: every version of NCCL accepts
    that, while versions up to 2.20 and 2.27.3 accept no path. Only a plugin that cannot be found by
    name is given as a path.
    """
    path, name, directory = str(plugin), plugin.name, str(plugin.parent)
    found = {"NCCL_NET_PLUGIN": path, "NCCL_NET": "HARP"}
    has_name = name.startswith(_PLUGIN_PREFIX) and name.endswith(_PLUGIN_SUFFIX)
    if has_name and not _LOADER_SEPARATORS & set(directory):
        short = name.removeprefix(_PLUGIN_PREFIX).removesuffix(_PLUGIN_SUFFIX)
        before = environ.get("LD_LIBRARY_PATH", "")
        found["NCCL_NET_PLUGIN"] = short
        found["LD_LIBRARY_PATH"] = f"{directory}:{before}" if before else directory
    elif "," in path or len(path.encode()) > _NAME_BYTES_MAX:
        reason = "move it where no , : ; is in the path" if has_name else "call it libnccl-net-*.so"
        raise HarpError(f"NCCL finds {path} neither by its name nor by its path: {reason}")
    return found


def variables(config: Config, plugin: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return all variables of a job: NCCL's, and the job's settings of the file or the command
    line.

    Variables in environ are left out: they override the file (but not a command line).
    """
    found = plugin_variables(plugin, environ)
    found |= {name: value.text for name, value in sorted(config.job_values().items())}
    if found.get("HARP_TRACE", environ.get("HARP_TRACE")) and not environ.get(_PROFILER):
        found[_PROFILER] = "harp"
    # For a harpd in another directory, pass its socket: jobs do not know the directory.
    run_dir = config.values["HARP_RUN_DIR"]
    if run_dir.source.kind == "file" and not run_dir.is_default and not config["HARP_SOCKET"]:
        found["HARP_SOCKET"] = str(config.daemon.socket_path)
    return found
