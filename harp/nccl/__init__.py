# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's NCCL on machines without a GPU: its wheels, its struct layouts, its ranks.

tools/nccl/README.md explains how the CPU emulates the GPU.
"""
