#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the subjects of new commits: `area: Imperative summary`, at most 72 characters.

    tools/check_commits.py             commits of HEAD that are not in $BASE, or else origin/main
    tools/check_commits.py RANGE       commits of a range in the syntax of `git log`

Merge commits are exempt. Prints each wrong subject; exit code 1 if there is one.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUBJECT_MAX = 72
SUBJECT = re.compile(r"^[a-z][\w./-]*(, [a-z][\w./-]*)*: (?P<verb>[A-Z][\w-]*)( |$)")
# Words with these endings are participles or third persons, except for the IMPERATIVES.
OTHER_FORM = re.compile(r"(ed|ing|[^s]s)$")
IMPERATIVES = {
    *("Bring", "Embed", "Exceed", "Feed", "Focus", "Need", "Ping", "Proceed", "Seed", "Shed"),
    *("Speed", "String", "Succeed", "Alias", "Canvas"),
}


def offence(subject: str) -> str:
    """The error in a commit's subject, or an empty string."""
    if len(subject) > SUBJECT_MAX:
        return f"{len(subject)} characters, more than {SUBJECT_MAX}"
    match = SUBJECT.match(subject)
    if match is None:
        return "not of the form `area: Imperative summary`"
    verb = match["verb"]
    if verb not in IMPERATIVES and OTHER_FORM.search(verb):
        return f"{verb} is not imperative"
    return ""


def git(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", ROOT, *args], capture_output=True, text=True, check=False)


def new_commits() -> str:
    """The range of commits to check; empty without a known base, as in a shallow clone."""
    for base in (os.environ.get("BASE", ""), "origin/main"):
        if base.strip("0") and git("rev-parse", "--verify", "--quiet", f"{base}^{{commit}}").stdout:
            return f"{base}..HEAD"
    return ""


def subjects(commits: str) -> Iterator[tuple[str, str]]:
    """Abbreviated hash and subject of each commit that is not a merge."""
    done = git("log", "--no-merges", "--format=%h %s", commits)
    if done.returncode:
        sys.exit(f"check_commits.py: {done.stderr.strip()}")
    for line in done.stdout.splitlines():
        commit, _, subject = line.partition(" ")
        yield commit, subject


def main() -> int:
    """Checks the given range, or the new commits."""
    commits = sys.argv[1] if len(sys.argv) > 1 else new_commits()
    if not commits:
        print("check_commits.py: nothing is checked: neither $BASE nor origin/main exists")
        return 0
    offences = [
        f"{commit} {subject!r}: {error}"
        for commit, subject in subjects(commits)
        if (error := offence(subject))
    ]
    for line in offences:
        print(line)
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
