# SPDX-License-Identifier: Apache-2.0
"""HARP's control plane: command line, laboratory, benchmarks, bindings to the C stack."""

from harp import _paths

__version__ = "0.1.0"
__all__ = ["__version__"]

# In a source tree the compiled modules lie in the build tree ($HARP_BUILD chooses another one).
if (_build := _paths.build_dir()) is not None:
    __path__.append(str(_build / "harp"))
