# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True
"""Statistics pages (harp_page.h): the lists of their fields, and their parts as bytes.

harp.stats converts the bytes to numpy arrays. Pages are not trusted: see harp_page_read().
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from harp._check cimport check as check_rc
from harp._check cimport check_why


cdef extern from "harp_page.h" nogil:
    struct harp_page_identity:
        pass
    struct harp_page_status:
        pass
    struct harp_page_flow:
        pass
    struct harp_page_histogram:
        pass
    struct harp_page_rail:
        pass
    struct harp_page_comm:
        pass
    struct harp_page_lane:
        pass
    struct harp_page_xstat:
        pass

    enum harp_page_part:
        HARP_PAGE_IDENTITY, HARP_PAGE_STATUS, HARP_PAGE_COUNTERS, HARP_PAGE_HISTOGRAMS
        HARP_PAGE_FLOWS, HARP_PAGE_JOB, HARP_PAGE_RAILS, HARP_PAGE_COMMS, HARP_PAGE_LANES
        HARP_PAGE_XSTATS

    const char *HARP_PAGE_LINK
    const unsigned HARP_HISTOGRAM_BUCKETS
    const unsigned HARP_PAGE_FLOWS_MAX
    const unsigned HARP_PAGE_XSTATS_MAX
    int harp_page_check(int fd, char *why, size_t why_len)
    int harp_page_read(int fd, harp_page_part part, uint32_t first, void *items,
                       uint32_t item_bytes, uint32_t max)
    const char *harp_histogram_name(unsigned index)
    const char *harp_histogram_help(unsigned index)
    uint64_t harp_histogram_upper_ns(unsigned bucket)
    const char *harp_flow_value_name(unsigned index)
    const char *harp_flow_value_help(unsigned index)
    const char *harp_job_counter_name(unsigned index)
    const char *harp_job_counter_help(unsigned index)
    const char *harp_rail_value_name(unsigned index)
    const char *harp_rail_value_help(unsigned index)
    const char *harp_comm_value_name(unsigned index)
    const char *harp_comm_value_help(unsigned index)
    const char *harp_lane_value_name(unsigned index)
    const char *harp_lane_value_help(unsigned index)
    const char *harp_lane_end_name(unsigned end)
    const char *harp_fallback_name(unsigned fallback)
    const char *harp_fallback_help(unsigned fallback)
    const char *harp_stats_name(unsigned index)
    const char *harp_stats_help(unsigned index)
    const char *harp_stats_kind(unsigned index)
    unsigned harp_stats_count()
    const char *harp_tcp_state_name(int state)
    const char *harp_congestion_name(int congestion)

cdef extern from "harp_host.h" nogil:
    const char *harp_steering_name(unsigned index)
    const char *harp_steering_help(unsigned index)


cdef enum:
    ITEM_BYTES_MAX = 4096  # more than any item has

IDENTITY, STATUS, COUNTERS, HISTOGRAMS, FLOWS, JOB, RAILS, COMMS, LANES, XSTATS = range(10)
XSTATS_MAX = HARP_PAGE_XSTATS_MAX
LINK = HARP_PAGE_LINK.decode()


def check(int fd):
    """Raise OSError with one line for people unless read() can read the page."""
    cdef char why[192]
    why[0] = 0
    check_why(harp_page_check(fd, why, sizeof(why)), why, "page")


def read(int fd, int part, unsigned item_bytes, unsigned most, unsigned first=0):
    """Return items of a part, cut or padded with zeros to item_bytes. OSError."""
    cdef int rc
    cdef uint8_t *into
    if item_bytes > ITEM_BYTES_MAX or most > HARP_PAGE_FLOWS_MAX:
        raise ValueError(f"{most} items of {item_bytes} bytes: no page has so many or so large")
    if item_bytes == 0 or most == 0:
        return b""
    items = bytearray(item_bytes * most)
    into = items
    with nogil:
        rc = harp_page_read(fd, <harp_page_part>part, first, into, item_bytes, most)
    check_rc(rc, f"part {part} of the page")
    return bytes(items[: rc * item_bytes])


# ---- The lists ----
def statistics():
    """Return (name, "counter" or "gauge", help) rows of harp_stats.h, in its order."""
    return [
        (harp_stats_name(i).decode(), harp_stats_kind(i).decode(), harp_stats_help(i).decode())
        for i in range(harp_stats_count())
    ]


ctypedef const char *(*text_of)(unsigned) noexcept nogil


cdef _listed(text_of name, text_of help, unsigned i=0):
    result = []
    while name(i) != NULL:
        result.append((name(i).decode(), help(i).decode()))
        i += 1
    return result


# (name, help) rows in the order of harp_page.h.
LISTS = {
    "histogram": _listed(harp_histogram_name, harp_histogram_help),
    # The numbers of a connection, of lanes of a kind over a NIC, of a comm and of a lane.
    "flow": _listed(harp_flow_value_name, harp_flow_value_help),
    "rail": _listed(harp_rail_value_name, harp_rail_value_help),
    "comm": _listed(harp_comm_value_name, harp_comm_value_help),
    "lane": _listed(harp_lane_value_name, harp_lane_value_help),
    # Counters of a job, and of the XDP program.
    "job": _listed(harp_job_counter_name, harp_job_counter_help),
    "verdict": _listed(harp_steering_name, harp_steering_help),
    # Reasons of a comm without HARP lanes, from number 1 on.
    "fallback": _listed(harp_fallback_name, harp_fallback_help, 1),
}


def histogram_upper_ns():
    """Return the largest value, in nanoseconds, of each bucket except the last."""
    return [harp_histogram_upper_ns(i) for i in range(HARP_HISTOGRAM_BUCKETS - 1)]


def lane_end_name(unsigned end):
    """Return why a lane was lost, such as "reset"; "" if it was not."""
    cdef const char *name = harp_lane_end_name(end)
    return "" if name == NULL else name.decode()


cdef int _number(number):
    """Return the number of an enum; 256, which is invalid, if it does not fit."""
    return number if 0 <= number <= 255 else 256


def state_name(state):
    """Return the name of a state, such as "ESTABLISHED"; "?" if it is invalid."""
    return harp_tcp_state_name(_number(state)).decode()


def congestion_name(congestion):
    """Return the name of a congestion control, such as "cubic"; "?" if it is invalid."""
    return harp_congestion_name(_number(congestion)).decode()


# Bytes of struct harp_page_NAME.
SIZES = {
    "identity": sizeof(harp_page_identity), "status": sizeof(harp_page_status),
    "flow": sizeof(harp_page_flow), "histogram": sizeof(harp_page_histogram),
    "rail": sizeof(harp_page_rail), "comm": sizeof(harp_page_comm),
    "lane": sizeof(harp_page_lane), "xstat": sizeof(harp_page_xstat),
}
