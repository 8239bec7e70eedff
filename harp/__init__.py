# SPDX-License-Identifier: Apache-2.0
"""HARP's control plane: command line, laboratory, benchmarks, bindings to the C stack."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("harp")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
