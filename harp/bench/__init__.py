# SPDX-License-Identifier: Apache-2.0
"""Benchmarks between test hosts (harp.lab)."""
