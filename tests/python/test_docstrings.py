# SPDX-License-Identifier: Apache-2.0
"""Docstrings of the public names, those of compiled modules included: every parameter is described.

ruff checks the style of the Python modules (rule D); it can't read Cython.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from enum import Enum
from types import ModuleType
from typing import Any

import pytest

import harp
import harp.testing
from harp import aio, collectives

TESTING = ("MemoryHost", "PacketBench", "hosts", "pair")


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The classes and functions for users."""
    for name in TESTING if module is harp.testing else module.__all__:
        value = getattr(module, name)
        if callable(value):
            yield name, value


def described(doc: str) -> set[str]:
    """The names under Parameters."""
    lines = inspect.cleandoc(doc).splitlines()
    if "Parameters" not in lines:
        return set()
    names: set[str] = set()
    first = lines.index("Parameters") + 2
    for at, line in enumerate(lines[first:], first):
        if at + 1 < len(lines) and re.fullmatch("-{3,}", lines[at + 1]):
            break  # the next section
        if line and not line.startswith(" "):
            names |= {word.strip().lstrip("*") for word in line.split(",")}
    return names


def lacking(name: str, function: Callable[..., Any], doc: str | None) -> list[str]:
    """What the docstring does not say."""
    if not doc:
        return [f"{name} has no docstring"]
    wanted = [each for each in inspect.signature(function).parameters if each != "self"]
    return [f"{name}: {each}" for each in wanted if each not in described(doc)]


def members(name: str, kind: type) -> Iterator[str]:
    """What a class and its methods do not say."""
    if not issubclass(kind, (BaseException, Enum)) and "__init__" in vars(kind):
        makes = not re.search("make (acceptors|endpoints)", kind.__init__.__doc__ or "")
        if makes and list(inspect.signature(kind.__init__).parameters) != [
            "self",
            "args",
            "kwargs",
        ]:
            yield from lacking(name, kind.__init__, kind.__doc__)
    for own, value in vars(kind).items():
        if own.startswith("_"):
            continue
        if inspect.isroutine(value):
            function = getattr(kind, own)
            yield from lacking(f"{name}.{own}", function, inspect.getdoc(function))
        elif isinstance(value, property) and not value.__doc__:
            yield f"{name}.{own} has no docstring"


MODULES = [harp, aio, harp.testing, collectives]


@pytest.mark.parametrize("module", MODULES, ids=lambda each: each.__name__)
def test_every_parameter_is_described(module: ModuleType) -> None:
    missing: list[str] = []
    for name, value in public(module):
        if inspect.isclass(value):
            missing += members(name, value)
        else:
            missing += lacking(name, value, value.__doc__)
    assert not missing
