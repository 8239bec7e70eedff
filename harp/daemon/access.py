# SPDX-License-Identifier: Apache-2.0
"""Decides which users may have leases: root, the named users, members of the named groups."""

import grp
import pwd
from collections.abc import Iterable
from dataclasses import dataclass

EVERYBODY = "*"


def user_number(name: str) -> int | None:
    """Return the number of a user given by name or number; None for an unknown name."""
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def group_number(name: str) -> int | None:
    """Return the number of a group given by name or number; None for an unknown name."""
    if name.isdecimal():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


@dataclass(frozen=True)
class Access:
    """The rule, in numbers. unknown: names without a user or group, for the log."""

    everybody: bool
    uids: frozenset[int]
    gids: frozenset[int]
    unknown: tuple[str, ...]

    @classmethod
    def of(cls, users: Iterable[str], groups: Iterable[str]) -> "Access":
        """Look up the names."""
        users = list(users)
        named = {name: user_number(name) for name in users if name != EVERYBODY}
        grouped = {name: group_number(name) for name in groups}
        unknown = [f"user {name}" for name, number in named.items() if number is None]
        unknown += [f"group {name}" for name, number in grouped.items() if number is None]
        return cls(
            EVERYBODY in users,
            frozenset(number for number in named.values() if number is not None),
            frozenset(number for number in grouped.values() if number is not None),
            tuple(unknown),
        )

    def allows(self, uid: int, gids: Iterable[int]) -> bool:
        """Tell whether this user, with these groups, may have a lease."""
        return self.everybody or uid == 0 or uid in self.uids or bool(self.gids & set(gids))
