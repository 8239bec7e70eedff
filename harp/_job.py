# SPDX-License-Identifier: Apache-2.0
"""What a job's own Python code needs to use HARP: harp.env() and harp.nccl_plugin_path()."""

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
    """Return the environment variables that make this process use HARP, as `harpctl env` does.

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

    found = config.load(file, settings=dict(settings or {}))
    return jobs.variables(found, nccl_plugin_path(), os.environ)
