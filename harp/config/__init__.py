# SPDX-License-Identifier: Apache-2.0
"""HARP's settings: the list of keys, harp.toml, the environment, and their combination."""

from harp.config.document import ConfigError, Problem
from harp.config.keys import DEFAULT_FILE, Key, Reader, Type, all_keys, find
from harp.config.loading import file_of, load, parse
from harp.config.model import (
    Config,
    DaemonConfig,
    DpdkConfig,
    MetricsConfig,
    NicConfig,
    Source,
    Value,
)
from harp.config.reloading import Reload, reload

__all__ = [
    "DEFAULT_FILE",
    "Config",
    "ConfigError",
    "DaemonConfig",
    "DpdkConfig",
    "Key",
    "MetricsConfig",
    "NicConfig",
    "Problem",
    "Reader",
    "Reload",
    "Source",
    "Type",
    "Value",
    "all_keys",
    "file_of",
    "find",
    "load",
    "parse",
    "reload",
]
