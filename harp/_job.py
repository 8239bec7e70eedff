# SPDX-License-Identifier: Apache-2.0
"""harp.env() and harp.nccl_plugin_path(): a job's Python code selects HARP with them."""

import os
from collections.abc import Mapping
from pathlib import Path

from harp import _paths


def nccl_plugin_path() -> Path:
    """Return the absolute path of HARP's NCCL net plugin, for NCCL_NET_PLUGIN.

    Raises
    ------
    HarpError
        HARP is not built, or its installation lacks the plugin.
    """
    return _paths.plugin().resolve()


def env(
    settings: Mapping[str, str] | None = None, file: Path | str | None = None
) -> dict[str, str]:
    """Return the environment variables that make this process use HARP.

    They are those of `harpctl env`, except that NCCL_NET_PLUGIN is a path: the loader reads
    LD_LIBRARY_PATH only when a process starts. NCCL up to 2.20 and 2.27.3 accept no path; there,
    start the process by `harpctl run`.

    Apply them before NCCL starts: ``os.environ |= harp.env()``, then
    ``torch.distributed.init_process_group("nccl")``. Variables that are set already are left out,
    as they take precedence over harp.toml.

    Parameters
    ----------
    settings
        Settings by key ("tcp.ecn") or variable ("HARP_ECN"); they take precedence over
        environment and file.
    file
        The harp.toml to read. Default: HARP_CONFIG, else /etc/harp/harp.toml, which may be absent.

    Raises
    ------
    HarpError
        A setting is wrong, the file cannot be read, or the plugin is missing.
    """
    from harp import config
    from harp.config import jobs

    job_config = config.load(file, settings=dict(settings or {}))
    plugin = nccl_plugin_path()
    variables = jobs.variables(job_config, plugin, os.environ)
    variables.pop("LD_LIBRARY_PATH", None)
    return variables | {"NCCL_NET_PLUGIN": str(plugin)}
