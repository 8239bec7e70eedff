# SPDX-License-Identifier: Apache-2.0
"""The fixtures of conftest_stats, from which tests import the types."""

from conftest_stats import job_owner, make_job, make_owner, owner

__all__ = ["job_owner", "make_job", "make_owner", "owner"]
