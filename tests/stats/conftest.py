# SPDX-License-Identifier: Apache-2.0
"""Fixtures of statistics' tests; conftest_stats has them, so that tests may name their types."""

from conftest_stats import make_owner, owner

__all__ = ["make_owner", "owner"]
