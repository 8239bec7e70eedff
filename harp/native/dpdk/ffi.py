# SPDX-License-Identifier: Apache-2.0
"""Writes the C source of harp._dpdk (cffi, API mode): ffi.py DECLARATIONS HEADER OUTPUT."""

import sys
from pathlib import Path

from cffi import FFI

SOURCE = """
#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_version.h>
#include "{header}"
"""


def main(declarations: Path, header: Path, output: Path) -> None:
    """Declare DPDK's functions, and those of the header, which cffi reads without directives."""
    lines = header.read_text(encoding="utf-8").splitlines()
    ffi = FFI()
    ffi.cdef(declarations.read_text(encoding="utf-8"))
    ffi.cdef("\n".join(line for line in lines if not line.startswith("#")))
    ffi.set_source("harp._dpdk", SOURCE.format(header=header.name))
    ffi.emit_c_code(str(output))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
