# SPDX-License-Identifier: Apache-2.0
"""python -m harp.torch: compiles the backend ahead of its first use, as for a container image."""

import sys

from harp.errors import Exit, HarpError
from harp.torch import building


def main() -> int:
    try:
        print(building.module().__file__)
    except ImportError as error:
        print(f"harp: error: {error}: install torch", file=sys.stderr)
        return Exit.MISSING
    except HarpError as error:
        print(f"harp: error: {error}", file=sys.stderr)
        return error.code
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main())
