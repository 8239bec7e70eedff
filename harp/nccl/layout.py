# SPDX-License-Identifier: Apache-2.0
"""Struct layouts of a libnccl.so.2, from its own debug information (DWARF), for harp-nccl-rank.

NCCL shares internal structs with its kernels, and their fields move from version to version. NVIDIA
ships the library with symbols and debug information.
"""

import contextlib
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harp.errors import Exit, HarpError

FORMAT = 1  # of the layout's text; part of the name of the cached file
_STRUCTS = (
    "ncclConnFifo",
    "ncclConnInfo",
    "ncclDevChannel",
    "ncclDevChannelPeer",
    "ncclDevKernelArgs",
    "ncclDevWorkBatch",
    "ncclDevWorkColl",
    "ncclDevWorkP2p",
    "ncclWork",
    "ncclWorkElemP2p",
    "ncclWorkHeader",
)
# The communicator's device side: ncclKernelComm since 2.28, where ncclDevComm is another struct.
_COMMS = ("ncclKernelComm", "ncclDevComm")
_ENUMERATORS = (
    "ncclNumTypes",
    "ncclNumDevRedOps",
    "ncclDevSum",
    "ncclFuncAllGatherV",
    "ncclDevWorkTypeP2p",
    "ncclDevWorkTypeColl",
    "ncclDevWorkStorageTypeArgs",
    "ncclDevWorkStorageTypeFifo",
)
_SOURCE = b"enqueue.cc"  # the compilation unit that defines all of them
_TYPEDEFS = ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type")
_COMPOUND = ("DW_TAG_structure_type", "DW_TAG_union_type", "DW_TAG_class_type")


def _name(die: Any) -> str:
    attribute = die.attributes.get("DW_AT_name")
    return attribute.value.decode() if attribute else ""


def _number(die: Any, attribute: str, default: int = 0) -> int:
    number = die.attributes.get(attribute)
    return int(number.value) if number else default


def _plain_type(die: Any) -> Any:
    """Return the type of a member or variable, without typedefs and qualifiers."""
    die_type = die.get_DIE_from_attribute("DW_AT_type")
    while die_type.tag in _TYPEDEFS and "DW_AT_type" in die_type.attributes:
        die_type = die_type.get_DIE_from_attribute("DW_AT_type")
    return die_type


def _bytes(die: Any) -> int:
    """Return the size of a type. Some libraries give none for pointers."""
    if die.tag == "DW_TAG_array_type":
        count = 1
        for child in die.iter_children():
            if child.tag == "DW_TAG_subrange_type":
                count *= _number(child, "DW_AT_upper_bound", -1) + 1
        return count * _bytes(_plain_type(die))
    return _number(die, "DW_AT_byte_size", 8 if die.tag == "DW_TAG_pointer_type" else 0)


def _place(member: Any, size: int) -> tuple[int, int]:
    base = _number(member, "DW_AT_data_member_location") * 8
    bits = _number(member, "DW_AT_bit_size")
    if not bits:
        return base, size * 8
    if "DW_AT_data_bit_offset" in member.attributes:
        return _number(member, "DW_AT_data_bit_offset"), bits
    # DWARF 3 counts from the most significant bit of the storage unit.
    unit = _number(member, "DW_AT_byte_size", size) * 8
    return base + unit - _number(member, "DW_AT_bit_offset") - bits, bits


def _members(prefix: str, die: Any, base_bits: int) -> Iterator[str]:
    for member in die.iter_children():
        # Static members and base classes have no offset.
        if member.tag != "DW_TAG_member" or "DW_AT_external" in member.attributes:
            continue
        kind = _plain_type(member)
        offset, bits = _place(member, _bytes(kind))
        name = f"{prefix}.{_name(member)}" if _name(member) else prefix
        if _name(member):
            yield f"field {name} {base_bits + offset} {bits}"
        if kind.tag in _COMPOUND:
            yield from _members(name, kind, base_bits + offset)


def _enumerators(unit: Any) -> Iterator[str]:
    for die in unit.iter_DIEs():
        if die.tag == "DW_TAG_enumerator" and _name(die) in _ENUMERATORS:
            yield f"number {_name(die)}={_number(die, 'DW_AT_const_value')}"


def _describe(unit: Any) -> list[str]:
    structs: dict[str, Any] = {}
    top = unit.get_top_DIE()
    for die in top.iter_children():
        if die.tag in _COMPOUND and "DW_AT_declaration" not in die.attributes:
            structs.setdefault(_name(die), die)
    lines = sorted(set(_enumerators(unit)))
    for name in _STRUCTS:
        if name in structs:
            lines.append(f"number sizeof {name}={_bytes(structs[name])}")
            lines += _members(name, structs[name], 0)
    for name in _COMMS:
        if name in structs:
            lines += _members("comm", structs[name], 0)
            break
    return lines


def _open(library: Path, stack: contextlib.ExitStack) -> Any:
    try:
        from elftools.elf.elffile import ELFFile
    except ImportError:
        raise HarpError(
            "pyelftools is not installed: pip install pyelftools", Exit.MISSING
        ) from None
    try:
        elf = ELFFile(stack.enter_context(library.open("rb")))
    except OSError as error:
        raise HarpError(f"{library}: {error.strerror}", Exit.MISSING) from error
    except Exception as error:  # pyelftools raises many types
        raise HarpError(f"{library}: not an ELF file: {error}") from error
    machine = elf.get_machine_arch()
    if machine != "x64" or platform.machine() != "x86_64":
        raise HarpError(
            f"{library}: for {machine}, on {platform.machine()}: only x86-64 is emulated; take"
            " NVIDIA's wheel for x86-64"
        )
    if elf.get_section_by_name(".symtab") is None or not elf.has_dwarf_info():
        raise HarpError(
            f"{library}: its symbols or debug information were stripped; take NVIDIA's own wheel"
        )
    return elf


def read(library: Path) -> str:
    """Return the layout file's text: lines "field NAME OFFSET BITS" and "number NAME=VALUE".

    HarpError for a library that is stripped, for another machine, or unlike all known versions.
    """
    with contextlib.ExitStack() as stack:
        elf = _open(library, stack)
        for unit in elf.get_dwarf_info(relocate_dwarf_sections=False).iter_CUs():
            name = unit.get_top_DIE().attributes.get("DW_AT_name")
            if name is not None and name.value.split(b"/")[-1] == _SOURCE:
                lines = _describe(unit)
                break
        else:
            lines = []
    if not any(line.startswith("field ncclConnInfo.step ") for line in lines):
        raise HarpError(f"{library}: its debug information does not describe NCCL's structs")
    return "\n".join(lines) + "\n"
