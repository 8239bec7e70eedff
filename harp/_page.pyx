# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True
"""Statistics pages (harp_page.h): the lists they are made of, and their parts as bytes.

harp.stats makes numpy arrays of them. Nothing here trusts a page: see harp_page_read().
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from harp._check cimport check as check_rc
from harp._check cimport check_why


cdef extern from "harp_page.h" nogil:
    struct harp_page_identity:
        uint32_t size
        uint32_t pid
        uint32_t queue
        uint32_t instance
        uint64_t lease_id
        uint64_t netns
        uint64_t start_wall_ns
        char ifname[16]
        char label[64]
        char describe[256]
        char library[16]

    struct harp_page_status:
        uint64_t published_ns
        uint64_t publications
        uint64_t flows_open
        uint64_t flows_hidden
        uint32_t ended
        char note[160]
        uint64_t comms_open
        uint64_t comms_hidden

    struct harp_page_flow:
        uint8_t local_addr[16]
        uint8_t remote_addr[16]
        uint16_t local_port
        uint16_t remote_port
        uint32_t scope_id
        char label[64]
        uint64_t state

    struct harp_page_histogram:
        uint64_t count
        uint64_t sum_ns
        uint64_t bucket[128]

    struct harp_page_rail:
        char ifname[16]
        harp_page_histogram srtt
        uint64_t value[1]

    struct harp_page_comm:
        uint8_t remote_addr[16]
        uint16_t remote_port
        uint32_t scope_id
        char ifname[16]
        uint64_t value[1]

    struct harp_page_lane:
        uint8_t local_addr[16]
        uint8_t remote_addr[16]
        uint16_t local_port
        uint16_t remote_port
        uint32_t scope_id
        char ifname[16]
        uint64_t value[1]

    struct harp_page_xstat:
        char name[64]
        uint64_t value

    enum harp_page_part:
        HARP_PAGE_IDENTITY
        HARP_PAGE_STATUS
        HARP_PAGE_COUNTERS
        HARP_PAGE_HISTOGRAMS
        HARP_PAGE_FLOWS
        HARP_PAGE_JOB
        HARP_PAGE_RAILS
        HARP_PAGE_COMMS
        HARP_PAGE_LANES
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
    """OSError with one line for people unless fd is a page that read() can read."""
    cdef char why[192]
    why[0] = 0
    check_why(harp_page_check(fd, why, sizeof(why)), why, "page")


def read(int fd, int part, unsigned item_bytes, unsigned most, unsigned first=0):
    """Items of a part, item_bytes each: longer ones cut, shorter ones filled up. OSError."""
    cdef int rc
    cdef uint8_t *into
    if item_bytes > ITEM_BYTES_MAX or most > HARP_PAGE_FLOWS_MAX:
        raise ValueError(f"{most} items of {item_bytes} bytes: no page has such")
    if item_bytes == 0 or most == 0:
        return b""
    items = bytearray(item_bytes * most)
    into = items
    with nogil:
        rc = harp_page_read(fd, <harp_page_part>part, first, into, item_bytes, most)
    check_rc(rc, f"part {part} of the page")
    return bytes(items[: rc * item_bytes])


# --------------------------------------------------------------------------------------------------
# The lists.
#
def statistics():
    """(name, "counter" or "gauge", help) of harp_stats.h, in its order."""
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


# (name, help) of each, in their order.
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
    """The largest value, in nanoseconds, of each bucket but the last, which has none."""
    return [harp_histogram_upper_ns(i) for i in range(HARP_HISTOGRAM_BUCKETS - 1)]


def lane_end_name(unsigned end):
    """"reset" and so on: why a lane was lost; "" when it was not."""
    cdef const char *name = harp_lane_end_name(end)
    return "" if name == NULL else name.decode()


cdef int _number(number):
    """Return the number of an enum; 256, which is none, for one that does not fit."""
    return number if 0 <= number <= 255 else 256


def state_name(state):
    """"ESTABLISHED" and so on; "?" when it is none."""
    return harp_tcp_state_name(_number(state)).decode()


def congestion_name(congestion):
    """"cubic" and so on; "?" when it is none."""
    return harp_congestion_name(_number(congestion)).decode()


# --------------------------------------------------------------------------------------------------
# Layouts, as numpy.dtype() takes them.
#
cdef _layout(size_t bytes_all, fields, numbers=None, size_t first=0):
    """numbers: the list of those that lie one behind the other, from offset `first` on."""
    if numbers is not None:
        fields += [(name, "=u8", first + 8 * i) for i, (name, _) in enumerate(LISTS[numbers])]
    names, formats, offsets = map(list, zip(*fields))
    return {"names": names, "formats": formats, "offsets": offsets, "itemsize": bytes_all}


cdef _layouts():
    cdef harp_page_identity *identity = NULL
    cdef harp_page_status *status = NULL
    cdef harp_page_histogram *histogram = NULL
    cdef harp_page_xstat *xstat = NULL
    cdef harp_page_flow *flow = NULL
    cdef harp_page_rail *rail = NULL
    cdef harp_page_comm *comm = NULL
    cdef harp_page_lane *lane = NULL
    buckets = f"({HARP_HISTOGRAM_BUCKETS},)=u8"
    return {
        "identity": _layout(sizeof(harp_page_identity), [
            ("pid", "=u4", <size_t>&identity.pid),
            ("queue", "=u4", <size_t>&identity.queue),
            ("instance", "=u4", <size_t>&identity.instance),
            ("lease_id", "=u8", <size_t>&identity.lease_id),
            ("netns", "=u8", <size_t>&identity.netns),
            ("start_wall_ns", "=u8", <size_t>&identity.start_wall_ns),
            ("ifname", f"S{sizeof(identity.ifname)}", <size_t>&identity.ifname[0]),
            ("label", f"S{sizeof(identity.label)}", <size_t>&identity.label[0]),
            ("describe", f"S{sizeof(identity.describe)}", <size_t>&identity.describe[0]),
            ("library", f"S{sizeof(identity.library)}", <size_t>&identity.library[0]),
        ]),
        "status": _layout(sizeof(harp_page_status), [
            ("published_ns", "=u8", <size_t>&status.published_ns),
            ("publications", "=u8", <size_t>&status.publications),
            ("flows_open", "=u8", <size_t>&status.flows_open),
            ("flows_hidden", "=u8", <size_t>&status.flows_hidden),
            ("ended", "=u4", <size_t>&status.ended),
            ("note", f"S{sizeof(status.note)}", <size_t>&status.note[0]),
            ("comms_open", "=u8", <size_t>&status.comms_open),
            ("comms_hidden", "=u8", <size_t>&status.comms_hidden),
        ]),
        "histogram": _layout(sizeof(harp_page_histogram), [
            ("count", "=u8", <size_t>&histogram.count),
            ("sum_ns", "=u8", <size_t>&histogram.sum_ns),
            ("bucket", buckets, <size_t>&histogram.bucket[0]),
        ]),
        "xstat": _layout(sizeof(harp_page_xstat), [
            ("name", f"S{sizeof(xstat.name)}", <size_t>&xstat.name[0]),
            ("value", "=u8", <size_t>&xstat.value),
        ]),
        "flow": _layout(sizeof(harp_page_flow), [
            ("local_addr", "V16", <size_t>&flow.local_addr[0]),
            ("remote_addr", "V16", <size_t>&flow.remote_addr[0]),
            ("local_port", "=u2", <size_t>&flow.local_port),
            ("remote_port", "=u2", <size_t>&flow.remote_port),
            ("scope_id", "=u4", <size_t>&flow.scope_id),
            ("label", f"S{sizeof(flow.label)}", <size_t>&flow.label[0]),
        ], "flow", <size_t>&flow.state),
        "rail": _layout(sizeof(harp_page_rail), [
            ("ifname", f"S{sizeof(rail.ifname)}", <size_t>&rail.ifname[0]),
            ("srtt_count", "=u8", <size_t>&rail.srtt.count),
            ("srtt_sum_ns", "=u8", <size_t>&rail.srtt.sum_ns),
            ("srtt_bucket", buckets, <size_t>&rail.srtt.bucket[0]),
        ], "rail", <size_t>&rail.value[0]),
        "comm": _layout(sizeof(harp_page_comm), [
            ("remote_addr", "V16", <size_t>&comm.remote_addr[0]),
            ("remote_port", "=u2", <size_t>&comm.remote_port),
            ("scope_id", "=u4", <size_t>&comm.scope_id),
            ("ifname", f"S{sizeof(comm.ifname)}", <size_t>&comm.ifname[0]),
        ], "comm", <size_t>&comm.value[0]),
        "lane": _layout(sizeof(harp_page_lane), [
            ("local_addr", "V16", <size_t>&lane.local_addr[0]),
            ("remote_addr", "V16", <size_t>&lane.remote_addr[0]),
            ("local_port", "=u2", <size_t>&lane.local_port),
            ("remote_port", "=u2", <size_t>&lane.remote_port),
            ("scope_id", "=u4", <size_t>&lane.scope_id),
            ("ifname", f"S{sizeof(lane.ifname)}", <size_t>&lane.ifname[0]),
        ], "lane", <size_t>&lane.value[0]),
    }


# struct harp_page_NAME. A rail's histogram of smoothed round trips is as "histogram".
LAYOUTS = _layouts()
