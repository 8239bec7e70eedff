# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's NCCL on hosts of a lab, over HARP and over NCCL's own sockets."""

from collections.abc import Iterator

import pytest

from harp.lab import Lab, LabOptions


@pytest.fixture
def lab(need_root: None, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Two hosts, or those that the test's parameter describes."""
    with Lab(getattr(request, "param", LabOptions())) as new_lab:
        yield new_lab
