# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of torch.distributed backends, with the backend "harp", a process per rank.

    WORLD_SIZE=3 python tests/torch/torch_suite.py -v [TestDistBackendWithSpawn.test_NAME]

torch's wheel contains the tests. The features declared here select which run. With
TORCH_SUITE_NETNS=NAME,..., rank r runs in the network namespace r of these.
"""

import os
import unittest
from collections.abc import Callable
from typing import Any

os.environ.setdefault("BACKEND", "harp")
os.environ.setdefault("WORLD_SIZE", "3")

import torch
from pyroute2 import netns
from torch.testing._internal.common_distributed import DistTestCases

for feature in ("ddp", "subgroup", "plugin"):
    DistTestCases.backend_feature[feature].add("harp")

from torch.testing._internal.distributed.distributed_test import (  # noqa: E402
    DistributedTest,
    TestDistBackend,
)

# There may be more ranks than cores.
torch.set_num_threads(1)


def _run(
    environment: dict[str, str], target: Callable[..., None], *args: Any, **options: Any
) -> None:
    """Sets the environment first: the fork server has that of its own start."""
    os.environ.update(environment)
    names = environment.get("TORCH_SUITE_NETNS")
    if names:
        netns.setns(names.split(",")[args[0]])  # the first argument is the rank
    target(*args, **options)


class TestDistBackendWithSpawn(TestDistBackend, DistributedTest._DistTestBase):
    """Every test runs in new processes, forked by a server that has imported torch."""

    def setUp(self) -> None:
        super().setUp()
        context = torch.multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch.testing._internal.distributed.distributed_test"])

        def process(target: Callable[..., None], args: tuple[Any, ...], **options: Any) -> Any:
            run_args = (dict(os.environ), target, *args)
            return context.Process(target=_run, args=run_args, **options)

        self._start_processes(process)

    @unittest.skip('DDP\'s log names every backend "custom" that is not of torch itself')
    def test_ddp_logging_data_cpu(self) -> None:
        """Expects the name "harp" in the log."""


if __name__ == "__main__":
    unittest.main()
