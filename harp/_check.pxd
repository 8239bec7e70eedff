# SPDX-License-Identifier: Apache-2.0
# Errors of C as exceptions, shared by the compiled modules.
from libc.string cimport strerror


cdef inline long check(long rc, str what) except? -1:
    """Return rc; OSError with its errno if it is negative."""
    if rc < 0:
        raise OSError(-rc, f"{what}: {strerror(<int>-rc).decode()}")
    return rc


cdef inline long check_why(long rc, const char *why, str what) except? -1:
    """Like check(), for a call that explains its failure in `why`, which may be empty."""
    if rc < 0 and why[0]:
        raise OSError(-rc, why.decode("utf-8", "replace"))
    return check(rc, what)
