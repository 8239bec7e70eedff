# SPDX-License-Identifier: Apache-2.0
"""Benchmarks that run between hosts of a laboratory (harp.lab)."""
