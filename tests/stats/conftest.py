# SPDX-License-Identifier: Apache-2.0
"""Fixtures of statistics' tests; conftest_stats has them, so that tests may name their types."""

from conftest_stats import job_owner, make_job, make_owner, owner

__all__ = ["job_owner", "make_job", "make_owner", "owner"]
