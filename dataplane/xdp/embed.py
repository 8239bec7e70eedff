# SPDX-License-Identifier: Apache-2.0
"""Writes a file's bytes as a C array: embed.py INPUT OUTPUT NAME."""

import sys
from pathlib import Path

source, output, name = sys.argv[1:]
data = Path(source).read_bytes()
rows = [", ".join(map(str, data[i : i + 20])) for i in range(0, len(data), 20)]
Path(output).write_text(
    f"/* Generated from {Path(source).name}. */\n"
    f"static const unsigned char {name}[] __attribute__((aligned(8))) = {{\n"
    + ",\n".join(f"\t{row}" for row in rows)
    + "\n};\n"
)
