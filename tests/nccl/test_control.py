# SPDX-License-Identifier: Apache-2.0
"""The rule of the control: a failure counts against HARP only if NCCL's own sockets pass."""

from collections.abc import Callable

import pytest
from nccl_tools import NEWEST, against_control, ranks_of

from harp.lab import Lab
from harp.nccl.ranks import EmulationError, RankError

Scenario = Callable[[], None]


def good() -> None:
    """Nothing fails."""


def bad() -> None:
    raise RankError("rank 0: unhandled system error")


def unknown() -> None:
    raise EmulationError("rank 0 ended with status 70: harp-nccl-rank: cudaNew is not emulated")


def outcome(control: Scenario, harp: Scenario) -> str:
    try:
        against_control(control, good, harp)
    except pytest.skip.Exception as error:
        return f"skipped: {error}"
    except pytest.fail.Exception as error:
        return f"failed: {error}"
    return "passed"


def test_a_failure_over_harp_alone_fails() -> None:
    assert outcome(good, bad).startswith("failed: NCCL's own sockets pass, HARP fails: rank 0: ")


def test_a_failure_of_both_is_skipped_with_the_reason() -> None:
    assert outcome(bad, bad) == (
        "skipped: NCCL fails over its own sockets, too: rank 0: unhandled system error"
    )


def test_harp_may_pass_where_the_sockets_fail() -> None:
    assert outcome(good, good) == outcome(bad, good) == "passed"


@pytest.mark.parametrize(("control", "harp"), [(unknown, bad), (bad, unknown), (unknown, good)])
def test_a_gap_of_the_emulation_is_never_skipped(control: Scenario, harp: Scenario) -> None:
    with pytest.raises(EmulationError, match="is not emulated"):
        against_control(control, harp)


@pytest.mark.nccl
def test_an_algorithm_that_is_not_emulated_ends_the_rank_with_its_name(lab: Lab) -> None:
    with ranks_of(lab, NEWEST, more={"NCCL_ALGO": "Tree"}) as ranks:
        ranks.init()
        with pytest.raises(EmulationError, match=r"NCCL chose algorithm 0 .*; set NCCL_ALGO=Ring"):
            ranks.run("allreduce", 1_000_000)
