# SPDX-License-Identifier: Apache-2.0
"""Docstrings of all public names describe every parameter, also in compiled modules.

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

TESTING = ("MemoryHost", "PacketBench", "pair")


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the public classes and functions."""
    for name in TESTING if module is harp.testing else module.__all__:
        value = getattr(module, name)
        if callable(value):
            yield name, value


def documented_parameters(doc: str) -> set[str]:
    """Return the names under Parameters."""
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


def omissions(name: str, function: Callable[..., Any], doc: str | None) -> list[str]:
    """Return the parameters that the docstring does not describe."""
    if not doc:
        return [f"{name} has no docstring"]
    names = [param for param in inspect.signature(function).parameters if param != "self"]
    return [f"{name}: {param}" for param in names if param not in documented_parameters(doc)]


def class_omissions(name: str, kind: type) -> Iterator[str]:
    """Yield what the docstrings of a class and its methods do not describe."""
    if not issubclass(kind, (BaseException, Enum)) and "__init__" in vars(kind):
        makes = not re.search("make (acceptors|endpoints)", kind.__init__.__doc__ or "")
        if makes and list(inspect.signature(kind.__init__).parameters) != [
            "self",
            "args",
            "kwargs",
        ]:
            yield from omissions(name, kind.__init__, kind.__doc__)
    for member, value in vars(kind).items():
        if member.startswith("_"):
            continue
        if inspect.isroutine(value):
            function = getattr(kind, member)
            yield from omissions(f"{name}.{member}", function, inspect.getdoc(function))
        elif isinstance(value, property) and not value.__doc__:
            yield f"{name}.{member} has no docstring"


MODULES = [harp, aio, harp.testing, collectives]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_parameter_is_described(module: ModuleType) -> None:
    missing: list[str] = []
    for name, value in public(module):
        if inspect.isclass(value):
            missing += class_omissions(name, value)
        else:
            missing += omissions(name, value, value.__doc__)
    assert not missing
