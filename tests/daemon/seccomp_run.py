# SPDX-License-Identifier: Apache-2.0
"""Run a program under SystemCallFilter and MemoryDenyWriteExecute, as systemd does.

    seccomp_run.py NUMBER[,NUMBER...] PROGRAM [ARGUMENT...]

All other system calls fail with EPERM.
"""

import ctypes
import os
import struct
import sys

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _PR_SET_MDWE = 38, 22, 65
_SECCOMP_MODE_FILTER = 2
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
_ALLOW, _ERRNO_EPERM = 0x7FFF0000, 0x00050001


class _Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_void_p)]


def install(numbers: list[int]) -> None:
    """Install the filter for this process and the programs that it executes."""
    code = struct.pack("HBBI", _LOAD, 0, 0, 0)  # seccomp_data.nr
    for number in numbers:
        code += struct.pack("HBBI", _EQUAL, 0, 1, number)
        code += struct.pack("HBBI", _RETURN, 0, 0, _ALLOW)
    code += struct.pack("HBBI", _RETURN, 0, 0, _ERRNO_EPERM)
    buffer = ctypes.create_string_buffer(code)
    program = _Program(len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_MDWE, 1, 0, 0, 0)  # needs Linux 6.3; an error is ignored
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    install([int(number) for number in sys.argv[1].split(",")])
    os.execvp(sys.argv[2], sys.argv[2:])
