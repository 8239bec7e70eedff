# SPDX-License-Identifier: Apache-2.0
"""harp.lab.team: which process's error is the team's."""

import os

import pytest

from harp.errors import HarpError
from harp.lab.team import Team


def test_the_first_that_fails_ends_the_wait() -> None:
    with Team("tool") as team:
        team.start(None, ["sleep", "600"])
        team.start(None, ["sh", "-c", "echo no route >&2; exit 3"])
        with pytest.raises(HarpError, match=r"^no route$"):
            team.finish()
        assert team.processes[0].wait() != 0


def test_a_process_that_lost_another_waits_for_its_error() -> None:
    with Team("tool") as team:
        reader, writer = os.pipe()
        lost = ["sh", "-c", "echo lost the peer >&2; exit 4"]
        team.start(None, lost, pass_fds=[writer])
        os.close(writer)
        cause = ["sh", "-c", f"cat /dev/fd/{reader}; echo cause >&2; exit 3"]  # after the other
        team.start(None, cause, pass_fds=[reader])
        os.close(reader)
        with pytest.raises(HarpError, match=r"^cause$"):
            team.finish(late=(4,))


def test_a_lost_process_is_the_cause_when_the_time_is_over() -> None:
    with Team("tool") as team:
        team.start(None, ["sleep", "600"])
        team.start(None, ["sh", "-c", "echo lost the peer >&2; exit 4"])
        team.processes[1].wait()
        with pytest.raises(HarpError, match=r"^lost the peer$"):
            team.finish(0.1, late=(4,))


def test_a_hanging_team_is_named() -> None:
    with Team("tool") as team:
        team.start(None, ["sleep", "600"])
        with pytest.raises(HarpError, match=r"^tool: not done after 0 s; try less$"):
            team.finish(0, remedy="; try less")


def test_output_comes_in_the_order_of_the_processes() -> None:
    with Team("tool") as team:
        team.start(None, ["echo", "first"])
        team.start(None, ["echo", "second"])
        assert team.finish() == ["first\n", "second\n"]
