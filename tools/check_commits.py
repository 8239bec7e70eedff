#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the subjects of new commits: `area: Imperative summary`, at most 72 characters.

    tools/check_commits.py             commits of HEAD that $BASE, or else origin/main, lacks
    tools/check_commits.py RANGE       commits of a range, as `git log` takes it

Merge commits are exempt. Prints each offence; exit code 1 when there is one.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 72
SUBJECT = re.compile(r"^[a-z][\w./-]*(, [a-z][\w./-]*)*: (?P<verb>[A-Z][\w-]*)( |$)")
# First words with such endings are mostly participles or the third person.
OTHER_FORM = re.compile(r"(ed|ing|[^s]s)$")
IMPERATIVE = {
    *("Bring", "Embed", "Exceed", "Feed", "Focus", "Need", "Ping", "Proceed", "Seed", "Shed"),
    *("Speed", "String", "Succeed", "Alias", "Canvas"),
}


def offence(subject: str) -> str:
    """What is wrong with a commit's subject; empty when nothing is."""
    if len(subject) > LONGEST:
        return f"{len(subject)} characters, more than {LONGEST}"
    match = SUBJECT.match(subject)
    if match is None:
        return "not of the form `area: Imperative summary`"
    verb = match["verb"]
    if verb not in IMPERATIVE and OTHER_FORM.search(verb):
        return f"{verb} is not imperative"
    return ""


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False)


def new_commits() -> str:
    """The range of commits to check; empty where no base is known, as in a shallow clone."""
    for base in (os.environ.get("BASE", ""), "origin/main"):
        if base.strip("0") and git("rev-parse", "--verify", "--quiet", f"{base}^{{commit}}").stdout:
            return f"{base}..HEAD"
    return ""


def subjects(commits: str) -> Iterator[tuple[str, str]]:
    """Abbreviated hash and subject of each commit that is no merge."""
    done = git("log", "--no-merges", "--format=%h %s", commits)
    if done.returncode:
        sys.exit(f"check_commits.py: {done.stderr.strip()}")
    for line in done.stdout.splitlines():
        commit, _, subject = line.partition(" ")
        yield commit, subject


def main() -> int:
    """Checks the range of the argument, or the new commits."""
    commits = sys.argv[1] if len(sys.argv) > 1 else new_commits()
    if not commits:
        print("check_commits.py: neither $BASE nor origin/main is here: nothing is checked")
        return 0
    offences = [
        f"{commit} {subject!r}: {why}"
        for commit, subject in subjects(commits)
        if (why := offence(subject))
    ]
    for line in offences:
        print(line)
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
