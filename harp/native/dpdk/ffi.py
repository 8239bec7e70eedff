# SPDX-License-Identifier: Apache-2.0
"""Writes the C source of harp._dpdk (cffi, API mode) from dpdk.h: ffi.py HEADER OUTPUT."""

import sys
from pathlib import Path

from cffi import FFI


def main(header: Path, output: Path) -> None:
    """One declaration of everything: C includes the header, cffi reads it without directives."""
    lines = header.read_text(encoding="utf-8").splitlines()
    ffi = FFI()
    ffi.cdef("\n".join(line for line in lines if not line.startswith("#")))
    ffi.set_source("harp._dpdk", f'#include "{header.name}"\n')
    ffi.emit_c_code(str(output))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
