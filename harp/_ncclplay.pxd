# SPDX-License-Identifier: Apache-2.0
# tools/driver/ncclplay.h, as far as the demo needs it.
from libc.stdint cimport uint64_t


cdef extern from "ncclplay.h" nogil:
    enum:
        NCCLPLAY_ERROR_BYTES
        NCCLPLAY_GATHER_BYTES_MAX
        NCCLPLAY_OK
        NCCLPLAY_INTERRUPTED

    struct ncclplay:
        pass

    ctypedef void (*ncclplay_log_fn)(void *arg, int level, const char *text) noexcept

    struct ncclplay_options:
        size_t size
        const char *plugin
        int abi
        int dev
        int rank
        int ranks
        const char *root
        int channels
        double timeout_s
        bint pin
        int cpu
        bint quiet
        unsigned int rest_us
        bint ll
        ncclplay_log_fn log
        void *log_arg

    struct ncclplay_properties_t "ncclplay_properties":
        char net[32]
        char path[256]
        char dev[64]
        int abi
        int devices
        int speed_mbps

    struct ncclplay_stats_t "ncclplay_stats":
        uint64_t sent_bytes
        uint64_t sent_messages
        uint64_t received_bytes
        uint64_t received_messages
        uint64_t operations
        uint64_t busy_ns
        uint64_t progress_cpu_ns
        uint64_t process_cpu_ns

    int ncclplay_open(const ncclplay_options *options, ncclplay **out, char *error,
                      size_t error_len)
    int ncclplay_connect(ncclplay *play)
    int ncclplay_allreduce_f32(ncclplay *play, const float *src, float *dst, size_t count)
    int ncclplay_barrier(ncclplay *play)
    int ncclplay_gather(ncclplay *play, const void *data, size_t length, void *out)
    void ncclplay_interrupt(ncclplay *play)
    int ncclplay_properties(ncclplay *play, ncclplay_properties_t *out)
    void ncclplay_stats(ncclplay *play, ncclplay_stats_t *out)
    const char *ncclplay_error(ncclplay *play)
    int ncclplay_close(ncclplay *play)
