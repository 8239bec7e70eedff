/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp_config.h - the list of all settings. The plugin's parser of the environment, harp.toml and
 * its checks, harpctl's commands, the hints for misspelled names and docs/configuration.md are
 * generated from it.
 *
 * Precedence: environment, harp.toml, default. An empty variable counts as unset.
 *
 * KEY(name, type, table, key, field, unit, min, max, preset, readers, help)
 *   name     the environment variable; for keys of [[nic]] and [[dpdk]], only a name: these tables
 *            can occur several times, and only harp.toml sets them
 *   type     BOOL     true or false
 *            U32      a non-negative integer
 *            MS, US   an integer number of milliseconds, microseconds; C fields hold nanoseconds
 *                     (uint64_t)
 *            CHOICE   one of the words in unit, in the order of the C field's enum
 *            TEXT     min to max bytes, without control characters
 *            LIST     at most max words, separated by commas; in harp.toml an array of strings
 *            CORES    numbers and ranges in ascending order, "2,4-7"; in harp.toml that string or
 *                     an array of numbers. At most max numbers, each below HARP_CONFIG_CORE_MAX
 *            PORTS    one range of ports, "61000-65535"
 *   table, key  position in harp.toml; "": environment variable only
 *   field    of struct plugin_config (plugin/plugin.h); 0 if the plugin does not read it
 *   unit     for display; for CHOICE the words, separated by |
 *   preset   the default, as text
 *   readers  JOB the plugin, DAEMON harpd, TOOL harpctl and the tests; several separated by |
 *
 * The order of entries has no meaning. A name is never reused with another meaning.
 */
#ifndef HARP_CONFIG_H
#define HARP_CONFIG_H

#include <stdint.h>

#include "harp.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HARP_CONFIG_FILE "/etc/harp/harp.toml"
/* The messages that use HARP lanes on this host, as measured by `harpctl tune`. */
#define HARP_CONFIG_PROFILE "/etc/harp/profile.toml"
/* The host's pre-shared key. If the file exists, lanes are encrypted. */
#define HARP_CONFIG_KEY_FILE "/etc/harp/job.key"
#define HARP_CONFIG_CORE_MAX 1024u /* core numbers are below this */
#define HARP_CONFIG_LIST_MAX 64u   /* entries of any LIST or CORES */

/* Settings of the plugin. Those in harp.toml reach a job through harpd (WELCOME) or `harpctl env`.
 * Settings that load libraries (HARP_LIBDIR, HARP_DPDK_ARGS) are variables only, so that harpd
 * cannot choose code for a job. */
#define HARP_CONFIG_JOB_KEYS(KEY)                                                                           \
	KEY(HARP_PATH, CHOICE, "job", "path", path, "auto|xdp|kernel|dpdk", 0, 0, "auto", JOB,              \
	    "Which transport carries the data. xdp: HARP's TCP on AF_XDP queues; dpdk: HARP's TCP on DPDK " \
	    "ports; kernel: kernel TCP; auto: the fastest one available. If the transport named here is "   \
	    "not available, initialization fails")                                                          \
	KEY(HARP_DPDK, TEXT, "", "", dpdk, "ports", 0, 4095, "", JOB,                                       \
	    "DPDK ports that this process opens itself, separated by spaces: "                              \
	    "DEVICE[;ip=ADDRESS/LENGTH][;gw=ADDRESS]... (docs/dpdk.md). Ports that harpd leases are set "   \
	    "in [[dpdk]]")                                                                                  \
	KEY(HARP_DPDK_HUGE_PAGES, CHOICE, "job", "dpdk_huge_pages", dpdk_huge_pages,                        \
	    "auto|never|require", 0, 0, "auto", JOB,                                                        \
	    "Whether DPDK's memory uses huge pages; auto: if enough are free")                              \
	KEY(HARP_DPDK_MEMORY_MIB, U32, "job", "dpdk_memory_mib", dpdk_memory_mib, "MiB", 32,                \
	    1048576, "256", JOB, "DPDK memory of a process, for all its ports")                             \
	KEY(HARP_DPDK_ARGS, TEXT, "", "", dpdk_args, "arguments", 0, 1023, "", JOB,                         \
	    "Additional arguments of DPDK's environment (EAL), separated by spaces; for example --no-pci")  \
	KEY(HARP_DAEMON, CHOICE, "job", "daemon", daemon, "auto|off|require", 0, 0, "auto", JOB,            \
	    "Where a job gets its queues. auto: leases from harpd if its socket exists, otherwise the "     \
	    "process opens its own if it has the privileges; off: never from harpd, although its settings " \
	    "still apply; require: initialization fails without harpd")                                     \
	KEY(HARP_SOCKET, TEXT, "daemon", "socket", socket, "path", 0, 107, "",                              \
	    JOB | DAEMON | TOOL,                                                                            \
	    "harpd's socket. Empty: harpd.sock in run_dir for harpd and harpctl, /run/harp/harpd.sock for " \
	    "jobs")                                                                                         \
	KEY(HARP_IFNAME, TEXT, "job", "ifname", ifname, "interfaces", 0, 255, "", JOB,                      \
	    "Interfaces to offer, in the syntax of NCCL_SOCKET_IFNAME, over which it takes precedence: a "  \
	    "list of prefixes; a leading = makes them whole names; a leading ^ excludes them")              \
	KEY(HARP_XDP_MODE, CHOICE, "job", "xdp_mode", xdp_mode, "auto|generic|native", 0, 0,                \
	    "auto", JOB,                                                                                    \
	    "How a process without harpd attaches its XDP program. auto: in native mode if that does "      \
	    "not slow down the kernel's traffic; in generic mode, which slows it down, only for "           \
	    "HARP_PATH=xdp, HARP_XDP_BYTES_MAX or a profile; otherwise not at all")                         \
	KEY(HARP_INSTANCES, U32, "job", "instances", instances, "instances", 1, 64, "1", JOB,               \
	    "Queues that a process requests on each interface, each with its own stack; connections are "   \
	    "distributed over them. A DPDK port's own `queues` setting takes precedence")                   \
	KEY(HARP_FRAMES, U32, "job", "frames", frames, "frames", 1024, 1048576, "8192", JOB,                \
	    "Packet buffers of each queue; on AF_XDP each has 2048 or 4096 bytes")                          \
	KEY(HARP_PORT_MIN, U32, "job", "port_min", port_min, "", 1024, 65535, "61000", JOB,                 \
	    "First local port of a process without harpd; with harpd the lease determines the ports")       \
	KEY(HARP_PORT_MAX, U32, "job", "port_max", port_max, "", 1024, 65535, "65535", JOB,                 \
	    "Last local port of a process without harpd")                                                   \
	KEY(HARP_RSS, TEXT, "job", "rss", rss, "rule", 0, 1023, "", JOB,                                    \
	    "How the NIC chooses a queue for a packet, for a process without harpd whose NIC reports "      \
	    "it wrongly. Empty: query the NIC; unknown: try source ports; toeplitz:KEY[:TABLE]: key "       \
	    "in hexadecimal, table of queue numbers separated by commas")                                   \
	KEY(HARP_LABEL, TEXT, "", "", label, "name", 0, 63, "", JOB,                                        \
	    "Name of this process in harpctl's output; empty: the program's name")                          \
	KEY(HARP_PAGE_FLOWS, U32, "job", "page_flows", page_flows, "connections", 0, 4096, "256",           \
	    JOB | DAEMON,                                                                                   \
	    "Connections of an instance that `harpctl flows` can show at a time; 0: none")                  \
	KEY(HARP_SPEED_MBPS, U32, "job", "speed_mbps", speed_mbps, "Mbit/s", 0, 10000000, "0",              \
	    JOB,                                                                                            \
	    "Speed to report to NCCL; 0: the speed that the interface reports, or 10000 if it reports "     \
	    "none")                                                                                         \
	KEY(HARP_EAGER_BYTES, U32, "job", "eager_bytes", eager_bytes, "bytes", 4096, 16777216,              \
	    "262144", JOB,                                                                                  \
	    "Bytes per comm that may be sent before the receiver has posted a receive")                     \
	KEY(HARP_XDP_BYTES_MAX, U32, "job", "xdp_bytes_max", xdp_bytes_max, "bytes", 0,                     \
	    4294967295, "0", JOB,                                                                           \
	    "With path auto, messages of up to this size use AF_XDP, even in generic mode, and longer "     \
	    "ones kernel TCP. 0: the profile decides, or, without a profile, a table by NIC mode. "         \
	    "DPDK ports carry all messages")                                                                \
	KEY(HARP_PROFILE, TEXT, "job", "profile", profile, "file", 0, 255, "", JOB,                         \
	    "Profile that says, for each NIC and group of peers, which messages use AF_XDP with path "      \
	    "auto. Empty: /etc/harp/profile.toml, if it exists")                                            \
	KEY(HARP_TUNER, CHOICE, "job", "tuner", tuner, "auto|off", 0, 0, "auto", JOB,                       \
	    "Whether NCCL chooses algorithms and protocols by the times that `harpctl tune --nccl` "        \
	    "measured. auto: if the profile has such times. Must be the same on every host of a job")       \
	KEY(HARP_TRACE, TEXT, "", "", trace, "directory", 0, 255, "", JOB,                                  \
	    "Directory for a job's network events, which `harpctl trace` reads; requires "                  \
	    "NCCL_PROFILER_PLUGIN=harp. `harpctl env` and `harpctl run` set both")                          \
	KEY(HARP_CAPTURE, TEXT, "", "", capture, "directory", 0, 255, "", JOB,                              \
	    "Directory for pcapng files with the headers of the newest packets of HARP's stacks, which "    \
	    "tcpdump cannot see; written when a connection fails and when the process ends")                \
	KEY(HARP_LANES, U32, "lanes", "harp", lanes, "lanes", 1, 8, "1", JOB,                               \
	    "Lanes of HARP's TCP that a comm opens over each NIC it uses")                                  \
	KEY(HARP_KERNEL_LANES, U32, "lanes", "kernel", kernel_lanes, "lanes", 0, 16, "0", JOB,              \
	    "Lanes of kernel TCP that a comm opens over each NIC it uses; 0: as many sockets as NCCL's "    \
	    "own transport opens (NCCL_SOCKET_NTHREADS times NCCL_NSOCKS_PERTHREAD if set, else 16 on "     \
	    "ENA, 4 on gVNIC, 1 on other NICs)")                                                            \
	KEY(HARP_RAILS, CHOICE, "lanes", "rails", rails, "own|backup|all", 0, 0, "backup", JOB,             \
	    "Which NICs a comm uses. own: the one that NCCL assigned; backup: a second one if that fails; " \
	    "all: every NIC that reaches the peer, at the same time")                                       \
	KEY(HARP_LANE_TIMEOUT_MS, MS, "lanes", "timeout_ms", lane_timeout_ns, "ms", 20, 60000,              \
	    "500", JOB,                                                                                     \
	    "Time without acknowledgment after which a lane counts as dead if other lanes of its comm "     \
	    "make progress; its data is then sent again over those. For a lane of kernel TCP the timeout "  \
	    "is at least twice its retransmission timeout (200 ms or more in Linux)")                       \
	KEY(HARP_ENCRYPT, CHOICE, "lanes", "encrypt", encrypt, "auto|off|aes-256-gcm", 0, 0,                \
	    "auto", JOB,                                                                                    \
	    "Whether lanes are encrypted. auto: if a key file exists; aes-256-gcm: always, and a "          \
	    "missing key is an error; off: never, and an existing key file is an error. "                   \
	    "HARP_ENCRYPT=off is also an error if harp.toml says aes-256-gcm. Needs OpenSSL's "             \
	    "libcrypto.so.3")                                                                               \
	KEY(HARP_KEY_FILE, TEXT, "lanes", "key_file", key_file, "file", 0, 255, "", JOB,                    \
	    "File with the pre-shared key, identical on every host: 64 hexadecimal digits (`openssl rand "  \
	    "-hex 32`), readable by its owner only. Empty: /etc/harp/job.key, if it exists")                \
	KEY(HARP_LIBDIR, TEXT, "", "", lib_dir, "directory", 0, 255, "", JOB,                               \
	    "Directory of libharp-xdp.so and libharp-dpdk.so; empty: the directory of this library")        \
	KEY(HARP_BACKGROUND_IDLE_US, US, "drive", "background_idle_us", background_idle_ns, "us",           \
	    10, 1000000, "1000", JOB,                                                                       \
	    "Time without a call from NCCL after which the background poller polls the stack; up to "       \
	    "four times as long after much traffic")                                                        \
	KEY(HARP_CONGESTION, CHOICE, "tcp", "congestion", congestion,                                       \
	    "default|newreno|cubic|dctcp|delay", 0, 0, "default", JOB,                                      \
	    "Congestion control of HARP's TCP; default: cubic. dctcp is for networks whose switches mark "  \
	    "packets (ECN), and must be set on all ranks")                                                  \
	KEY(HARP_ECN, CHOICE, "tcp", "ecn", ecn, "default|off|request", 0, 0, "default", JOB,               \
	    "Explicit congestion notification of HARP's TCP. default: accepted if the peer offers it, and " \
	    "offered with dctcp")                                                                           \
	KEY(HARP_CONNECT_TIMEOUT_MS, MS, "tcp", "connect_timeout_ms", connect_timeout_ns, "ms",             \
	    10, 3600000, "30000", JOB,                                                                      \
	    "Timeout of a connect. It is a tenth of this if no port of the peer answers, and a third if "   \
	    "the peer's listener is closed")                                                                \
	KEY(HARP_USER_TIMEOUT_MS, MS, "tcp", "user_timeout_ms", user_timeout_ns, "ms", 100,                 \
	    86400000, "120000", JOB,                                                                        \
	    "Time that sent data may stay unacknowledged before the connection is aborted (RFC 5482)")      \
	KEY(HARP_INITIAL_RTO_MS, MS, "tcp", "initial_rto_ms", initial_rto_ns, "ms", 5, 60000,               \
	    "200", JOB,                                                                                     \
	    "Retransmission timeout of HARP's TCP before the first round-trip sample; three times as long " \
	    "after a retransmitted SYN. RFC 6298 says 1000. 200 suits data centers, where a lost SYN is "   \
	    "more likely than a round trip of that length")                                                 \
	KEY(HARP_PROBE_INTERVAL_MS, MS, "tcp", "probe_interval_ms", probe_interval_ns, "ms", 0,             \
	    60000, "250", JOB,                                                                              \
	    "Interval of probes to a silent peer while a request waits for it; 0: never")                   \
	KEY(HARP_CLOSE_LINGER_MS, MS, "tcp", "close_linger_ms", close_linger_ns, "ms", 0, 1000,             \
	    "50", JOB,                                                                                      \
	    "Time for which a closed lane waits for its peer, and exit() for acknowledgments")

/* Settings of harpd, except for NICs. */
#define HARP_CONFIG_DAEMON_KEYS(KEY)                                                                        \
	KEY(HARP_RUN_DIR, TEXT, "daemon", "run_dir", 0, "directory", 1, 90, "/run/harp",                    \
	    DAEMON | TOOL,                                                                                  \
	    "Directory of harpd's socket, its state and the bpffs directory of its pins; each harpd of a "  \
	    "host needs its own")                                                                           \
	KEY(HARP_SOCKET_GROUP, TEXT, "daemon", "socket_group", 0, "group", 0, 63, "", DAEMON,               \
	    "Group that may connect to the socket; empty: every user may connect. `users` and `groups` "    \
	    "decide who gets a lease")                                                                      \
	KEY(HARP_USERS, LIST, "daemon", "users", 0, "users", 0, 64, "", DAEMON,                             \
	    "Users, by name or number, who may have leases, in addition to root; * means all. With a "      \
	    "lease a process can send any frame on the NIC")                                                \
	KEY(HARP_GROUPS, LIST, "daemon", "groups", 0, "groups", 0, 64, "harp", DAEMON,                      \
	    "Groups, by name or number, whose members may have leases. A group that does not exist has no " \
	    "members")                                                                                      \
	KEY(HARP_ALLOW_NET_ADMIN_CONTAINERS, BOOL, "daemon", "allow_net_admin_containers", 0, "",           \
	    0, 1, "false", DAEMON,                                                                          \
	    "Whether a process of another network namespace may have a lease if its capability bounding "   \
	    "set includes CAP_NET_ADMIN in harpd's user namespace. Through the lease's AF_XDP socket it "   \
	    "can change the host's network namespace")                                                      \
	KEY(HARP_LEASES_PER_UID, U32, "daemon", "leases_per_uid", 0, "leases", 1, 4096, "64",               \
	    DAEMON, "Maximum number of leases per user")                                                    \
	KEY(HARP_CONNECTIONS_PER_UID, U32, "daemon", "connections_per_uid", 0, "connections", 1,            \
	    4096, "128", DAEMON, "Maximum number of connections to the socket per user")                    \
	KEY(HARP_PORTS_PER_INSTANCE, U32, "daemon", "ports_per_instance", 0, "ports", 0, 4096,              \
	    "0", DAEMON,                                                                                    \
	    "Local ports of a lease; 0: 256, or fewer if the NIC's range is too small for 256 on twice "    \
	    "the number of its queues")                                                                     \
	KEY(HARP_PORT_REST_MS, MS, "daemon", "port_rest_ms", 0, "ms", 0, 3600000, "60000", DAEMON,          \
	    "Time between the end of a lease and the reuse of its ports, so that late packets do not "      \
	    "reach the next holder")                                                                        \
	KEY(HARP_FRAMES_MAX, U32, "daemon", "frames_max", 0, "frames", 1024, 1048576, "65536",              \
	    DAEMON,                                                                                         \
	    "Maximum number of packet buffers of a lease, regardless of the job's request")                 \
	KEY(HARP_HUGE_PAGES, U32, "daemon", "huge_pages", 0, "pages of 2 MiB", 0, 1048576, "0",             \
	    DAEMON,                                                                                         \
	    "Huge pages that harpd allocates on the host while it runs; 0: the number does not change. "    \
	    "Packet buffers use them if enough are free")                                                   \
	KEY(HARP_PREPARE, BOOL, "daemon", "prepare", 0, "", 0, 1, "true", DAEMON,                           \
	    "Whether harpd changes NICs and host settings as [[nic]] says, and restores them when it "      \
	    "stops; false: it uses them as they are")                                                       \
	KEY(HARP_LOG_LEVEL, CHOICE, "daemon", "log_level", 0, "error|warning|info|debug", 0, 0,             \
	    "info", DAEMON, "Lowest level of the lines that harpd logs")                                    \
	KEY(HARP_METRICS_ADDRESS, TEXT, "metrics", "address", 0, "address", 1, 63, "127.0.0.1",             \
	    DAEMON, "Address of harpd's Prometheus endpoint, which has no authentication")                  \
	KEY(HARP_METRICS_PORT, U32, "metrics", "port", 0, "", 0, 65535, "9747", DAEMON,                     \
	    "Port of harpd's Prometheus endpoint; 0: disabled")

/* Settings of one [[nic]] of harp.toml: how harpd configures a NIC until it stops. */
#define HARP_CONFIG_NIC_KEYS(KEY)                                                                           \
	KEY(IFNAME, TEXT, "nic", "ifname", 0, "interface", 1, 15, "", DAEMON,                               \
	    "Name of the interface; required in every [[nic]], and unique")                                 \
	KEY(QUEUES, U32, "nic", "queues", 0, "queues", 0, 256, "0", DAEMON,                                 \
	    "Number of queues to set; 0: unchanged")                                                        \
	KEY(LEASE_QUEUES, CORES, "nic", "lease_queues", 0, "queues", 0, 64, "", DAEMON,                     \
	    "Queues that may be leased, for example 1,3-7; empty: all")                                     \
	KEY(PORTS, PORTS, "nic", "ports", 0, "ports", 1024, 65535, "61000-65535", DAEMON,                   \
	    "Local ports that are reserved for HARP on this host (ip_local_reserved_ports) and divided "    \
	    "into blocks, one per lease")                                                                   \
	KEY(XDP_MODE, CHOICE, "nic", "xdp_mode", 0, "auto|generic|native", 0, 0, "auto", DAEMON,            \
	    "How the XDP program is attached. auto: in native mode if that does not slow down the "         \
	    "kernel's traffic; otherwise the NIC is not leased; generic: on any NIC, for jobs with "        \
	    "HARP_PATH=xdp; this slows down the kernel's traffic")                                          \
	KEY(RSS, TEXT, "nic", "rss", 0, "rule", 0, 1023, "", DAEMON,                                        \
	    "As HARP_RSS, for this NIC. Empty: query the NIC")                                              \
	KEY(ALLOW_SOURCES, LIST, "nic", "allow_sources", 0, "prefixes", 0, 64, "", DAEMON,                  \
	    "IPv4 and IPv6 prefixes that may send to HARP's ports, for example 10.0.0.0/8, fd00::/8. The "  \
	    "XDP program drops packets from other sources, and ICMP errors about HARP's connections from "  \
	    "other sources. An address family without a prefix is blocked. Empty: all sources. It does "    \
	    "not apply to DPDK ports and to processes without harpd")                                       \
	KEY(RX_RING, U32, "nic", "rx_ring", 0, "packets", 0, 65536, "0", DAEMON,                            \
	    "Length of the NIC's receive rings; 0: unchanged")                                              \
	KEY(TX_RING, U32, "nic", "tx_ring", 0, "packets", 0, 65536, "0", DAEMON,                            \
	    "Length of the NIC's transmit rings; 0: unchanged")                                             \
	KEY(COALESCE, CHOICE, "nic", "coalesce", 0, "keep|low|adaptive|set", 0, 0, "keep", DAEMON,          \
	    "Interrupt coalescing. keep: unchanged; low: an interrupt for each packet; adaptive: the "      \
	    "driver decides; set: coalesce_rx_us and coalesce_tx_us")                                       \
	KEY(COALESCE_RX_US, US, "nic", "coalesce_rx_us", 0, "us", 0, 10000, "8", DAEMON,                    \
	    "Maximum delay of a receive interrupt, with coalesce = \"set\"")                                \
	KEY(COALESCE_TX_US, US, "nic", "coalesce_tx_us", 0, "us", 0, 10000, "8", DAEMON,                    \
	    "Maximum delay of a transmit completion interrupt, with coalesce = \"set\"")                    \
	KEY(DEFER_IRQS, U32, "nic", "defer_irqs", 0, "polls", 0, 1000, "0", DAEMON,                         \
	    "napi_defer_hard_irqs: empty polls before interrupts are enabled again; 0: unchanged")          \
	KEY(GRO_FLUSH_US, US, "nic", "gro_flush_us", 0, "us", 0, 10000, "0", DAEMON,                        \
	    "gro_flush_timeout, used together with defer_irqs; 0: unchanged")                               \
	KEY(LRO, CHOICE, "nic", "lro", 0, "keep|on|off", 0, 0, "keep", DAEMON,                              \
	    "Large receive offload; most drivers do not support native XDP with it")                        \
	KEY(GRO_HW, CHOICE, "nic", "gro_hw", 0, "keep|on|off", 0, 0, "keep", DAEMON,                        \
	    "GRO in hardware, which merges packets before XDP receives them")                               \
	KEY(GRO, CHOICE, "nic", "gro", 0, "keep|on|off", 0, 0, "keep", DAEMON,                              \
	    "GRO of the kernel's own traffic")                                                              \
	KEY(TSO, CHOICE, "nic", "tso", 0, "keep|on|off", 0, 0, "keep", DAEMON,                              \
	    "Segmentation offload of the kernel's own traffic")                                             \
	KEY(RX_CHECKSUM, CHOICE, "nic", "rx_checksum", 0, "keep|on|off", 0, 0, "keep", DAEMON,              \
	    "Receive checksum offload")                                                                     \
	KEY(TX_CHECKSUM, CHOICE, "nic", "tx_checksum", 0, "keep|on|off", 0, 0, "keep", DAEMON,              \
	    "Transmit checksum offload of the kernel's own traffic")                                        \
	KEY(IRQ_AFFINITY, CHOICE, "nic", "irq_affinity", 0, "keep|local|cores", 0, 0, "keep",               \
	    DAEMON,                                                                                         \
	    "Cores of the queues' interrupts. keep: unchanged; local: the cores of the NIC's NUMA node in " \
	    "turn; cores: those of irq_cores")                                                              \
	KEY(IRQ_CORES, CORES, "nic", "irq_cores", 0, "cores", 0, 64, "", DAEMON,                            \
	    "Cores of the queues' interrupts, in the order of the queues, with irq_affinity = \"cores\"")

/* Settings of one [[dpdk]] of harp.toml: a port that harpd leases to one job at a time, whose own
 * DPDK drives it. harpd never opens it, so a restart of harpd may change all settings, add and
 * remove ports. */
#define HARP_CONFIG_DPDK_KEYS(KEY)                                                                         \
	KEY(DEVICE, TEXT, "dpdk", "device", 0, "device", 1, 511, "", DAEMON,                               \
	    "PCI address of the NIC (0000:00:06.0), or name of a virtual device, followed by a comma and " \
	    "its DPDK arguments (net_memif0,role=client,id=0). Required in every [[dpdk]], and unique")    \
	KEY(NAME, TEXT, "dpdk", "name", 0, "name", 0, 15, "", DAEMON,                                      \
	    "Name of the port for jobs and in harpctl's output; unique. Empty: the first 15 bytes of the " \
	    "device's name")                                                                               \
	KEY(ADDRESSES, LIST, "dpdk", "addresses", 0, "addresses", 0, 15, "", DAEMON,                       \
	    "The port's addresses with prefix lengths, for example 10.9.0.1/24 or fd00:9::1/64. HARP "     \
	    "answers ARP, neighbor discovery and ping for them")                                           \
	KEY(GATEWAYS, LIST, "dpdk", "gateways", 0, "gateways", 0, 2, "", DAEMON,                           \
	    "Default gateways, one per address family")                                                    \
	KEY(ROUTES, LIST, "dpdk", "routes", 0, "routes", 0, 32, "", DAEMON,                                \
	    "Additional routes, for example 10.8.0.0/16@10.9.0.254")                                       \
	KEY(MTU, U32, "dpdk", "mtu", 0, "bytes", 0, 16000, "0", DAEMON,                                    \
	    "MTU of the port; 0: the device's, but at most 1500 unless this setting allows more")          \
	KEY(VLAN, U32, "dpdk", "vlan", 0, "", 0, 4094, "0", DAEMON,                                        \
	    "VLAN of all packets of the port; 0: none")                                                    \
	KEY(QUEUES, U32, "dpdk", "queues", 0, "queues", 1, 64, "1", DAEMON,                                \
	    "Number of queues for a job, each with its own stack")                                         \
	KEY(FRAMES, U32, "dpdk", "frames", 0, "frames", 0, 1048576, "0", DAEMON,                           \
	    "Packet buffers of each queue; 0: 8192")                                                       \
	KEY(DEFAULT_ROUTE, BOOL, "dpdk", "default_route", 0, "", 0, 1, "false", DAEMON,                    \
	    "Whether the port may be used although the host's default route uses its interface; the host " \
	    "is then unreachable while a job holds the port")

/* Settings of harpctl, harpd or the tests, which are variables only. */
#define HARP_CONFIG_TOOL_KEYS(KEY)                                                                         \
	KEY(HARP_CONFIG, TEXT, "", "", 0, "file", 0, 1023, "", DAEMON | TOOL,                              \
	    "The configuration file. Empty: /etc/harp/harp.toml, if it exists. A file that is named here " \
	    "must exist")                                                                                  \
	KEY(HARP_BUILD, TEXT, "", "", 0, "directory", 0, 1023, "", TOOL,                                   \
	    "Build directory that harpctl uses in a source tree; empty: build/ next to harp/")             \
	KEY(HARP_SEEDS, U32, "", "", 0, "seeds", 1, 100000000, "20000", TOOL,                              \
	    "Number of simulator seeds that `make test-long` runs")

enum harp_config_type {
	HARP_CONFIG_BOOL = 0,
	HARP_CONFIG_U32 = 1,
	HARP_CONFIG_MS = 2,
	HARP_CONFIG_US = 3,
	HARP_CONFIG_CHOICE = 4,
	HARP_CONFIG_TEXT = 5,
	HARP_CONFIG_LIST = 6,
	HARP_CONFIG_CORES = 7,
	HARP_CONFIG_PORTS = 8,
};
/* Readers of a key, as a set. */
#define HARP_CONFIG_JOB 1u
#define HARP_CONFIG_DAEMON 2u
#define HARP_CONFIG_TOOL 4u

struct harp_config_key {
	const char *name; /* the variable; of a key of an array its name there, in capitals */
	const char *table, *key; /* "": variables only; "nic", "dpdk": arrays, [[nic]], [[dpdk]] */
	const char *unit, *preset, *help;
	uint64_t min, max;
	uint32_t type;    /* enum harp_config_type */
	uint32_t readers; /* HARP_CONFIG_JOB and so on */
};
/* The keys of all lists, in order: jobs', harpd's, NICs', DPDK ports', tools'. */
HARP_API unsigned harp_config_count(void);
/* NULL after the last. */
HARP_API const struct harp_config_key *harp_config_key(unsigned index);

#ifdef __cplusplus
}
#endif

#endif
