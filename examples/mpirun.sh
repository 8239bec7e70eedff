#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Starts a job over HARP with Open MPI:
#   examples/mpirun.sh -np 16 --hostfile hosts python train.py --epochs 3
# All hosts need HARP at the same path and the same harp.toml. Otherwise, use mpirun and put
# `harpctl run --` before the program.
set -euo pipefail

settings=$(harpctl env -o plain)
variables=()
while IFS= read -r setting; do
	variables+=(-x "$setting")
done <<<"$settings"
exec mpirun "${variables[@]}" "$@"
