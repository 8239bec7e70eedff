# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t

from harp._c cimport harp_addr, harp_endpoint, harp_nic

cdef int _parse(str text, harp_addr *out) except -1
cdef int _endpoint(str address, int port, unsigned scope_id, harp_endpoint *out) except -1
cdef str _format(const harp_addr *addr)
cdef int _mac(mac, uint8_t *out) except -1
cdef _left_open(what)


cdef class _Context:
    pass


cdef class Nic:
    cdef harp_nic *nic
    cdef int users  # open stacks
    cdef object parent
    cdef object __weakref__

    cdef harp_nic *_open(self) except NULL
