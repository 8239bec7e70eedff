#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Starts a job over HARP with torchrun. Run it on both hosts, with NODE_RANK 0 and 1:
#   NODES=2 NODE_RANK=0 MASTER_ADDR=10.77.0.1 examples/torchrun.sh train.py --epochs 3
set -euo pipefail

exec harpctl run -- torchrun \
	--nnodes="${NODES:-1}" --node-rank="${NODE_RANK:-0}" \
	--nproc-per-node="${RANKS_PER_NODE:-gpu}" \
	--master-addr="${MASTER_ADDR:-127.0.0.1}" --master-port="${MASTER_PORT:-29500}" \
	"$@"
