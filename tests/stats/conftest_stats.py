# SPDX-License-Identifier: Apache-2.0
"""A process that publishes (tests/unit/page_owner.c), at the tests' command."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harp import stats

TOOLS = Path(sys.executable).parent


class Owner:
    """page_owner: two stacks on queues 0 and 1 of a NIC that does not exist."""

    def __init__(self, program: Path, ifname: str, label: str, connections: int) -> None:
        self.ifname = ifname
        self.process = subprocess.Popen(
            [program, ifname, label, str(connections)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def _answer(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ok\n"

    def say(self, *lines: str) -> None:
        """Each is done when the next is said."""
        assert self.process.stdin is not None
        for line in lines:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            self._answer()

    def pages(self, found: stats.Found) -> list[stats.Page]:
        """Its pages, by queue."""
        mine = [page for page in found.pages if page.pid == self.process.pid]
        return sorted(mine, key=lambda page: page.read().identity.queue)

    def close(self) -> None:
        """Ends it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process.wait(10)


MakeOwner = Callable[..., Owner]


@pytest.fixture
def make_owner(build_dir: Path) -> Iterator[MakeOwner]:
    """Starts one: ifname, label, connections."""
    owners: list[Owner] = []

    def make(ifname: str = "harp7", label: str = "train rank 0", connections: int = 3) -> Owner:
        program = build_dir / "tests" / "unit" / "page_owner"
        owners.append(Owner(program, ifname, label, connections))
        return owners[-1]

    yield make
    for owner in owners:
        owner.close()


@pytest.fixture
def owner(make_owner: MakeOwner) -> Owner:
    """One that has moved some bytes."""
    result = make_owner()
    result.say("run 200")
    return result


def tool(name: str) -> Path:
    """promtool or prometheus; tools/setup.sh brings them."""
    import shutil

    found = shutil.which(name, path=f"{TOOLS}:/usr/bin:/usr/local/bin")
    if found is None:
        pytest.fail(f"{name} is not there: run `make build`")
    return Path(found)
