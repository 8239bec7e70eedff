#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A job over HARP, started by Open MPI:
#   examples/mpirun.sh -np 16 --hostfile hosts python train.py --epochs 3
# The hosts have HARP in the same place and the same harp.toml; else put `harpctl run --` before the program instead.
set -euo pipefail

settings=$(harpctl env -o plain)
variables=()
while IFS= read -r setting; do
	variables+=(-x "$setting")
done <<<"$settings"
exec mpirun "${variables[@]}" "$@"
