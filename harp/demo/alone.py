# SPDX-License-Identifier: Apache-2.0
"""The single-process run to which the demo is compared: python -m harp.demo.alone.

It is a process of its own, so that it computes with the same number of threads as a rank.
"""

import sys

import numpy as np

from harp.demo.model import train_alone


def main() -> None:
    """Arguments: epochs, shards, file for the weights."""
    epochs, shards, path = sys.argv[1:]
    np.save(path, train_alone(int(epochs), int(shards)))


if __name__ == "__main__":
    main()
