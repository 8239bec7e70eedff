# SPDX-License-Identifier: Apache-2.0
# harp.h, harp_nic.h, harp_host.h and native/drive.h, as far as the bindings use them.
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "sys/uio.h" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len


cdef extern from "sys/socket.h" nogil:
    enum:
        SHUT_WR


cdef extern from "harp_nic.h" nogil:
    struct harp_nic_caps:
        char name[32]
        char mode[64]
        uint32_t mtu_bytes
        uint8_t mac[6]

    struct harp_nic:
        harp_nic_caps caps

    void harp_nic_destroy(harp_nic *nic)

    struct harp_wire:
        pass

    struct harp_wire_impair_t "harp_wire_impair":
        uint64_t delay_ns, jitter_ns, rate_bps, queue_bytes
        uint32_t loss_ppm, duplicate_ppm, reorder_ppm, corrupt_ppm
        uint64_t reorder_ns
        uint32_t down

    struct harp_wire_options:
        uint32_t size, ports, frame_count, mtu_bytes, strict
        uint64_t seed

    struct harp_wire_stats_t "harp_wire_stats":
        uint64_t sent, delivered, lost, duplicated, reordered, corrupted, queue_dropped, ce_marked
        uint64_t rx_no_frame, strict_violations

    int harp_wire_create(harp_wire **out, const harp_wire_options *opt)
    harp_nic *harp_wire_port(harp_wire *wire, unsigned port)
    int harp_wire_set_impair(harp_wire *wire, unsigned port, const harp_wire_impair_t *impair)
    int harp_wire_stats(const harp_wire *wire, unsigned port, harp_wire_stats_t *out)
    unsigned harp_wire_in_flight(const harp_wire *wire)
    void harp_wire_destroy(harp_wire *wire)

    struct harp_nic_callbacks:
        uint32_t size, mtu_bytes, frame_count
        uint8_t mac[6]
        void *ctx
        size_t (*receive)(void *ctx, void *buf, size_t cap) noexcept
        int (*send)(void *ctx, const void *frame, size_t length) noexcept

    int harp_nic_callback_create(harp_nic **out, const harp_nic_callbacks *callbacks)


cdef extern from "harp.h" nogil:
    enum:
        HARP_ADDR_TEXT_MAX, HARP_NEIGHBOR_OWN, HARP_NEIGHBOR_EXTERNAL

    enum harp_log_level:
        HARP_LOG_ERROR

    ctypedef void (*harp_log_fn)(void *ctx, harp_log_level level, const char *message) noexcept

    struct harp_stack:
        pass

    struct harp_listener:
        pass

    struct harp_conn:
        pass

    const char *harp_version()

    struct harp_addr:
        uint8_t bytes[16]

    struct harp_endpoint:
        harp_addr addr
        uint16_t port
        uint32_t scope_id

    int harp_addr_parse(const char *text, harp_addr *out)
    char *harp_addr_format(const harp_addr *addr, char *buf)

    struct harp_stack_hooks:
        void *ctx
        harp_log_fn log

    struct harp_stack_options:
        uint32_t size, max_conns, max_neighbors
        uint16_t port_min, port_max
        uint32_t neighbor_mode
        uint64_t seed, now_ns
        harp_stack_hooks hooks
        uint32_t scope_id
        uint16_t vlan_id

    int harp_stack_create(harp_stack **out, harp_nic *nic, const harp_stack_options *opt)
    void harp_stack_destroy(harp_stack *stack)
    int harp_stack_poll(harp_stack *stack, uint64_t now_ns)
    uint64_t harp_stack_next_deadline_ns(const harp_stack *stack)
    uint64_t harp_stack_now_ns(const harp_stack *stack)
    int harp_stack_address_add(harp_stack *stack, const harp_addr *addr, unsigned prefix_len)
    int harp_stack_route_add(harp_stack *stack, const harp_addr *prefix, unsigned prefix_len,
                             const harp_addr *gateway, uint32_t mtu_bytes)
    int harp_stack_neighbor_set(harp_stack *stack, const harp_addr *addr, const uint8_t *mac)

    struct harp_tcp_options:
        uint32_t size, rx_frames, tx_frames, backlog
        uint64_t connect_timeout_ns, user_timeout_ns, keepalive_idle_ns, keepalive_interval_ns
        uint32_t keepalive_count
        uint8_t dscp
        uint32_t unsent_bytes_max, congestion, fixed_window_bytes, ecn, mss_bytes, options_off
        uint64_t delayed_ack_ns, initial_rto_ns

    enum:
        HARP_TCPI_TIMESTAMPS, HARP_TCPI_SACK, HARP_TCPI_WSCALE, HARP_SSTHRESH_NONE

    enum harp_congestion:
        HARP_CONGESTION_DEFAULT

    const char *harp_congestion_name(harp_congestion congestion)
    int harp_congestion_from_name(const char *name)
    int harp_tcp_listen(harp_stack *stack, const harp_endpoint *local,
                        const harp_tcp_options *opt, harp_listener **out)
    int harp_tcp_accept(harp_listener *listener, harp_conn **out)
    void harp_listener_endpoint(const harp_listener *listener, harp_endpoint *local)
    void harp_listener_close(harp_listener *listener)
    int harp_tcp_connect(harp_stack *stack, const harp_endpoint *local,
                         const harp_endpoint *remote, const harp_tcp_options *opt,
                         harp_conn **out)
    harp_conn *harp_stack_next_event(harp_stack *stack, uint32_t *events)
    ssize_t harp_conn_send(harp_conn *conn, const iovec *iov, int iov_count)
    size_t harp_conn_send_space(const harp_conn *conn)
    ssize_t harp_conn_recv(harp_conn *conn, void *buf, size_t length)
    size_t harp_conn_readable_bytes(const harp_conn *conn)

    struct harp_frame:
        uint8_t *data
        uint32_t length "len"
        uint32_t capacity

    int harp_frame_alloc(harp_conn *conn, harp_frame **out)
    int harp_conn_send_frame(harp_conn *conn, harp_frame *frame)
    int harp_conn_recv_frame(harp_conn *conn, harp_frame **out)
    void harp_frame_release(harp_conn *conn, harp_frame *frame)
    int harp_conn_shutdown(harp_conn *conn, int how)
    void harp_conn_close(harp_conn *conn)
    void harp_conn_abort(harp_conn *conn)
    int harp_conn_error(const harp_conn *conn)
    void harp_conn_endpoints(const harp_conn *conn, harp_endpoint *local, harp_endpoint *remote)
    uint64_t harp_conn_acked_bytes(const harp_conn *conn)
    int harp_conn_options(const harp_conn *conn, harp_tcp_options *opt)
    int harp_conn_set_options(harp_conn *conn, const harp_tcp_options *opt)
    enum harp_tcp_state:
        HARP_TCP_ESTABLISHED, HARP_TCP_FIN_WAIT_2, HARP_TCP_TIME_WAIT

    const char *harp_tcp_state_name(harp_tcp_state state)
    enum harp_ca_state:
        HARP_CA_OPEN

    const char *harp_ca_state_name(harp_ca_state state)

    struct harp_tcp_info:
        uint32_t state, options, snd_mss_bytes, rcv_mss_bytes, snd_wscale, rcv_wscale
        uint64_t srtt_ns, rttvar_ns, rtt_ns_min, rto_ns, snd_cwnd_bytes, snd_ssthresh_bytes
        uint64_t snd_wnd_bytes, rcv_wnd_bytes, bytes_in_flight, bytes_unsent, bytes_sent
        uint64_t bytes_acked, bytes_received, bytes_retransmitted, segs_out, segs_in, data_segs_out
        uint64_t data_segs_in, retransmits, rto_count, fast_retransmits, dup_acks_in
        uint64_t out_of_order_in, zero_window_probes, keepalive_probes, tx_copied_bytes
        uint64_t rx_copied_bytes
        uint32_t rx_frames_held, rx_frames_budget, tx_frames_held, tx_frames_budget
        uint64_t last_rcv_ns
        uint32_t congestion, dctcp_alpha_ppm
        uint64_t pacing_bytes_per_s, ecn_ce_in, ecn_ece_in, ecn_reductions, sacked_bytes, lost_segs
        uint64_t tlp_probes, undone_recoveries, reorder_window_ns
        uint32_t ca_state, backoff
        uint64_t sacked_out_segs, lost_out_segs, retrans_out_segs

    void harp_conn_info(const harp_conn *conn, harp_tcp_info *info)

    struct harp_udp:
        pass

    struct harp_udp_options:
        uint32_t size, rx_frames, tx_frames
        uint8_t dscp

    int harp_udp_open(harp_stack *stack, const harp_endpoint *local, const harp_udp_options *opt,
                      harp_udp **out)
    int harp_udp_connect(harp_udp *sock, const harp_endpoint *remote)
    void harp_udp_close(harp_udp *sock)
    int harp_udp_error(harp_udp *sock, harp_endpoint *about)
    ssize_t harp_udp_send(harp_udp *sock, const harp_endpoint *remote, const iovec *iov,
                          int iov_count)
    struct harp_udp_from:
        harp_endpoint peer

    ssize_t harp_udp_recv(harp_udp *sock, void *buf, size_t length, harp_udp_from *source)
    void harp_udp_endpoints(const harp_udp *sock, harp_endpoint *local, harp_endpoint *remote)
    unsigned harp_stats_count()
    const char *harp_stats_name(unsigned index)
    const char *harp_stats_help(unsigned index)
    unsigned harp_stack_stats(const harp_stack *stack, uint64_t *values, unsigned count)


cdef extern from "harp_host.h" nogil:
    struct harp_check_item:
        char name[32]
        int severity
        char text[256]
        char remedy[256]

    int harp_host_check(const char *ifname, uint32_t queue, harp_check_item *items, unsigned max)

    enum:
        HARP_PORT_TEXT_MAX

    struct harp_port_route:
        harp_addr prefix, gateway
        uint32_t prefix_len

    struct harp_port_spec:
        char device[512]
        char name[16]
        uint32_t mtu_bytes, vlan_id, queues, frame_count
        bint take_default_route
        uint32_t address_count, route_count
        harp_addr addresses[15]
        uint32_t prefix_lens[15]
        harp_port_route routes[32]
        harp_addr gateway_v4, gateway_v6

    int harp_port_spec_parse(const char *text, harp_port_spec *out, char *why, size_t why_len)
    int harp_port_spec_format(const harp_port_spec *spec, char *buf, size_t size)

    struct harp_instance:
        pass

    struct harp_instance_options:
        uint32_t size
        const char *ifname
        uint32_t queue, xdp_mode, copy_mode, huge_pages, frame_count, max_conns
        uint16_t port_min, port_max
        uint64_t seed
        const char *lib_dir
        void *ctx
        harp_log_fn log
        const char *daemon_socket
        const char *label
        uint32_t dpdk_memory_mib
        const char *dpdk_args

    int harp_instance_open(harp_instance **out, const harp_instance_options *opt, char *why,
                           size_t why_len)
    harp_stack *harp_instance_stack(harp_instance *instance)
    harp_nic *harp_instance_nic(harp_instance *instance)
    int harp_instance_fd(const harp_instance *instance)
    int harp_instance_control_fd(const harp_instance *instance)
    int harp_instance_control(harp_instance *instance, uint64_t now_ns)
    const char *harp_instance_describe(const harp_instance *instance)
    int harp_instance_steering(const harp_instance *instance, uint64_t *counts, unsigned max)
    void harp_instance_fork_child(harp_instance *instance)
    void harp_instance_close(harp_instance *instance)


cdef extern from "harp_config.h" nogil:
    struct harp_config_key_t "harp_config_key":
        const char *name
        const char *table
        const char *key
        const char *unit
        const char *preset
        const char *help
        uint64_t min, max
        uint32_t type, readers

    const harp_config_key_t *harp_config_key_at "harp_config_key"(unsigned index)
    unsigned harp_config_count()


cdef extern from "drive.h" nogil:
    enum:
        DRIVE_MEMBERS_MAX

    uint64_t DRIVE_FOREVER

    struct drive:
        pass

    struct drive_member:
        harp_stack *stack
        harp_nic *nic
        harp_instance *instance

    struct drive_options:
        uint64_t spin_ns
        int (*interrupted)(void *ctx) noexcept
        void *ctx

    ctypedef int (*drive_try_fn)(void *ctx) noexcept

    int drive_create(drive **out, const drive_member *members, unsigned count,
                     const drive_options *opt)
    void drive_stop(drive *d)
    bint drive_stopped(const drive *d)
    void drive_free(drive *d)
    void drive_enter(drive *d)
    void drive_leave(drive *d)
    bint drive_inside(const drive *d)
    bint drive_ours(const drive *d)
    void drive_advance(drive *d)
    int drive_wait(drive *d, drive_try_fn attempt, void *ctx, uint64_t deadline_ns)
    uint64_t drive_now_ns()
