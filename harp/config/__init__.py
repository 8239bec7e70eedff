# SPDX-License-Identifier: Apache-2.0
"""HARP's settings: the list of keys, harp.toml, the environment, and their combination."""

from harp.config.document import ConfigError, Problem
from harp.config.keys import Reader, find
from harp.config.loading import file_of, load, parse
from harp.config.model import Config, DaemonConfig, DpdkConfig, MetricsConfig, NicConfig, Value

__all__ = [
    "Config",
    "ConfigError",
    "DaemonConfig",
    "DpdkConfig",
    "MetricsConfig",
    "NicConfig",
    "Problem",
    "Reader",
    "Value",
    "file_of",
    "find",
    "load",
    "parse",
]
