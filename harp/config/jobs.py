# SPDX-License-Identifier: Apache-2.0
"""The environment that makes a job use HARP."""

from collections.abc import Mapping
from pathlib import Path

from harp.config.model import Config
from harp.errors import HarpError

# NCCL reads NCCL_NET_PLUGIN as a list with commas, of at most 254 bytes for each entry (net.cc).
_NAME_BYTES_MAX = 254
_PROFILER = "NCCL_PROFILER_PLUGIN"  # harp: libnccl-profiler-harp.so, next to the plugin
_PLUGIN_PREFIX, _PLUGIN_SUFFIX = "libnccl-net-", ".so"
_LOADER_SEPARATORS = set(":;")  # of LD_LIBRARY_PATH


def plugin_variables(plugin: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which NCCL finds exactly this plugin.

    NCCL gets the plugin's name, and the loader's path begins with its directory, because NCCL up to
    2.20 and 2.27.3 accept no path. Only a plugin that the loader can't find by name is named by its
    path.
    """
    path, name, directory = str(plugin), plugin.name, str(plugin.parent)
    result = {"NCCL_NET_PLUGIN": path, "NCCL_NET": "HARP"}
    has_name = name.startswith(_PLUGIN_PREFIX) and name.endswith(_PLUGIN_SUFFIX)
    if has_name and not _LOADER_SEPARATORS & set(directory):
        short = name.removeprefix(_PLUGIN_PREFIX).removesuffix(_PLUGIN_SUFFIX)
        before = environ.get("LD_LIBRARY_PATH", "")
        result["NCCL_NET_PLUGIN"] = short
        result["LD_LIBRARY_PATH"] = f"{directory}:{before}" if before else directory
    elif "," in path or len(path.encode()) > _NAME_BYTES_MAX:
        remedy = "move it to a path without , : ;" if has_name else "rename it to libnccl-net-*.so"
        raise HarpError(f"NCCL finds {path} neither by its name nor by its path: {remedy}")
    return result


def variables(config: Config, plugin: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to add to a job's environment: NCCL's, and the settings from the file or
    the command line.

    Variables in environ override the file, but not the command line.
    """
    result = plugin_variables(plugin, environ)
    result |= {name: value.text for name, value in sorted(config.job_values().items())}
    if result.get("HARP_TRACE", environ.get("HARP_TRACE")) and not environ.get(_PROFILER):
        result[_PROFILER] = "harp"
    # For a harpd in another directory, pass its socket: jobs do not know the directory.
    run_dir = config.values["HARP_RUN_DIR"]
    if run_dir.source.kind == "file" and not run_dir.is_default and not config["HARP_SOCKET"]:
        result["HARP_SOCKET"] = str(config.daemon.socket_path)
    return result
