# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""coll/harp_coll.h for Cython."""

from libc.stdint cimport int64_t, uint64_t

cdef extern from "harp_coll.h" nogil:
    enum: HARP_COLL_ERROR_BYTES

    enum harp_coll_op:
        pass
    enum harp_coll_dtype:
        HARP_COLL_INT8, HARP_COLL_UINT8, HARP_COLL_INT16, HARP_COLL_UINT16, HARP_COLL_INT32
        HARP_COLL_UINT32, HARP_COLL_INT64, HARP_COLL_UINT64, HARP_COLL_FLOAT16, HARP_COLL_BFLOAT16
        HARP_COLL_FLOAT32, HARP_COLL_FLOAT64, HARP_COLL_COMPLEX64, HARP_COLL_COMPLEX128
        HARP_COLL_BOOL
    enum harp_coll_reduce:
        pass
    enum harp_coll_wire:
        pass

    struct harp_coll_store:
        size_t size
        void *arg
        int (*set)(void *, const char *, const void *, size_t) noexcept
        int (*get)(void *, const char *, void *, size_t *) noexcept
        int (*wait)(void *, const char *, int64_t) noexcept

    struct harp_coll_options:
        size_t size
        int rank, world
        const char *name
        harp_coll_store store
        const char *plugin
        int device
        int64_t timeout_ms
        const char *host
        harp_coll_wire wire
        void (*log)(void *, int, const char *) noexcept
        void *log_arg

    struct harp_coll:
        pass
    struct harp_coll_request:
        pass

    struct harp_coll_call:
        size_t size
        harp_coll_op op
        harp_coll_dtype dtype
        harp_coll_reduce reduce
        harp_coll_wire wire
        int peer, tag
        const void *in_ "in"
        void *out
        size_t count
        const size_t *in_counts
        const size_t *out_counts
        int64_t timeout_ms

    struct harp_coll_stats_t "harp_coll_stats":
        size_t size
        uint64_t net_sent_bytes, net_sent_messages
        uint64_t shm_sent_bytes, shm_sent_messages
        uint64_t net_received_bytes, net_received_messages
        uint64_t shm_received_bytes, shm_received_messages
        uint64_t operations

    struct harp_coll_net_t "harp_coll_net":
        size_t size
        char name[64]
        char path[256]
        char device[64]
        int abi, devices, speed_mbps

    int harp_coll_open(const harp_coll_options *, harp_coll **, char *, size_t)
    void harp_coll_close(harp_coll *)
    void harp_coll_abort(harp_coll *, const char *)
    int harp_coll_start(harp_coll *, const harp_coll_call *, harp_coll_request **, char *, size_t)
    int harp_coll_run(harp_coll *, const harp_coll_call *, char *, size_t)
    int harp_coll_test(harp_coll_request *)
    int harp_coll_wait(harp_coll_request *, int64_t)
    const char *harp_coll_request_error(const harp_coll_request *)
    int harp_coll_request_source(const harp_coll_request *)
    size_t harp_coll_request_count(const harp_coll_request *)
    void harp_coll_request_free(harp_coll_request *)
    void harp_coll_stats(harp_coll *, harp_coll_stats_t *)
    void harp_coll_net(harp_coll *, harp_coll_net_t *)
