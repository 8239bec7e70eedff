/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp_config.h - the list of all settings. The plugin's parser of the environment, harp.toml and
 * its checks, harpctl's commands, the hints for misspelled names and docs/configuration.md are
 * generated from it.
 *
 * Precedence: environment, harp.toml, default. An empty variable counts as unset.
 *
 * KEY(name, type, table, key, field, unit, min, max, preset, apply, readers, help)
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
 *   apply    LIVE     reloaded on SIGHUP to harpd: applies to later jobs, leases and connections
 *            RESTART  needs `harpctl restart`
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
/* Which messages go over HARP lanes on this host, as `harpctl tune` measured it. */
#define HARP_CONFIG_PROFILE "/etc/harp/profile.toml"
/* The pre-shared key of a host: where it exists, lanes are encrypted. */
#define HARP_CONFIG_KEY_FILE "/etc/harp/job.key"
#define HARP_CONFIG_CORE_MAX 1024u /* core numbers are below it */
#define HARP_CONFIG_LIST_MAX 64u   /* entries of any LIST or CORES */

/* What the plugin reads. Those that stand in harp.toml reach a job through harpd (WELCOME) or
 * `harpctl env`. What can load a library (HARP_LIBDIR, HARP_DPDK_ARGS) is a variable only, so that
 * harpd cannot choose code for a job. */
#define HARP_CONFIG_JOB_KEYS(KEY)                                                                              \
	KEY(HARP_PATH, CHOICE, "job", "path", path, "auto|xdp|kernel|dpdk", 0, 0, "auto", LIVE,                \
	    JOB,                                                                                               \
	    "What carries the data: HARP's TCP on AF_XDP queues or on DPDK ports, kernel TCP, or the best "    \
	    "to be had. A path asked for by name that cannot be had is an error")                              \
	KEY(HARP_DPDK, TEXT, "", "", dpdk, "ports", 0, 4095, "", LIVE, JOB,                                    \
	    "DPDK ports that this process opens for itself, with spaces between: "                             \
	    "DEVICE[;ip=ADDRESS/LENGTH][;gw=ADDRESS]..., as docs/dpdk.md has it. Those of harpd are [[dpdk]] " \
	    "in harp.toml")                                                                                    \
	KEY(HARP_DPDK_HUGE_PAGES, CHOICE, "job", "dpdk_huge_pages", dpdk_huge_pages,                           \
	    "auto|never|require", 0, 0, "auto", LIVE, JOB,                                                     \
	    "Whether DPDK's memory lies in huge pages; auto: where there are enough")                          \
	KEY(HARP_DPDK_MEMORY_MIB, U32, "job", "dpdk_memory_mib", dpdk_memory_mib, "MiB", 32,                   \
	    1048576, "256", LIVE, JOB, "Memory that DPDK has for all ports of a process")                      \
	KEY(HARP_DPDK_ARGS, TEXT, "", "", dpdk_args, "arguments", 0, 1023, "", LIVE, JOB,                      \
	    "More arguments of DPDK's environment (EAL), with spaces between: --no-pci, say")                  \
	KEY(HARP_DAEMON, CHOICE, "job", "daemon", daemon, "auto|off|require", 0, 0, "auto", LIVE,              \
	    JOB,                                                                                               \
	    "Whose queues a job uses. auto: leases from harpd where its socket is there, else the "            \
	    "process's own where it has the privileges; off: none of harpd's, but its settings still hold; "   \
	    "require: an error without harpd")                                                                 \
	KEY(HARP_SOCKET, TEXT, "daemon", "socket", socket, "path", 0, 107, "", RESTART,                        \
	    JOB | DAEMON | TOOL,                                                                               \
	    "harpd's socket. Empty: harpd.sock in run_dir for harpd and harpctl, "                             \
	    "/run/harp/harpd.sock for jobs")                                                                   \
	KEY(HARP_IFNAME, TEXT, "job", "ifname", ifname, "interfaces", 0, 255, "", LIVE, JOB,                   \
	    "Interfaces to offer, in the syntax of NCCL_SOCKET_IFNAME and before it: a list of "               \
	    "prefixes; with = in front whole names; with ^ in front those not to take")                        \
	KEY(HARP_XDP_MODE, CHOICE, "job", "xdp_mode", xdp_mode, "auto|generic|native", 0, 0,                   \
	    "auto", LIVE, JOB,                                                                                 \
	    "How a process without harpd attaches its XDP program. auto: native where the kernel loses "       \
	    "nothing by it; else generic, which slows the kernel's own traffic down, with HARP_PATH=xdp, "     \
	    "HARP_XDP_BYTES_MAX or a profile that uses it, and otherwise nothing")                             \
	KEY(HARP_INSTANCES, U32, "job", "instances", instances, "instances", 1, 64, "1", LIVE,                 \
	    JOB,                                                                                               \
	    "Queues that one process asks for on each interface, each with a stack of its own; "               \
	    "connections are spread over them. A DPDK port that says `queues` has so many")                    \
	KEY(HARP_FRAMES, U32, "job", "frames", frames, "frames", 1024, 1048576, "8192", LIVE, JOB,             \
	    "Packet buffers of each queue; 2048 or 4096 bytes each on AF_XDP")                                 \
	KEY(HARP_PORT_MIN, U32, "job", "port_min", port_min, "", 1024, 65535, "61000", LIVE, JOB,              \
	    "First local port of a process without harpd; with harpd the lease says which ports")              \
	KEY(HARP_PORT_MAX, U32, "job", "port_max", port_max, "", 1024, 65535, "65535", LIVE, JOB,              \
	    "Last local port of a process without harpd")                                                      \
	KEY(HARP_RSS, TEXT, "job", "rss", rss, "rule", 0, 1023, "", LIVE, JOB,                                 \
	    "How the NIC chooses a queue for a packet, where a process without harpd must not believe what "   \
	    "the NIC says. Empty: ask the NIC; unknown: find out by trying; toeplitz:KEY[:TABLE]: key in "     \
	    "hexadecimal, table of queue numbers with commas between")                                         \
	KEY(HARP_LABEL, TEXT, "", "", label, "name", 0, 63, "", LIVE, JOB,                                     \
	    "What harpctl calls this process; empty: the program's name")                                      \
	KEY(HARP_PAGE_FLOWS, U32, "job", "page_flows", page_flows, "connections", 0, 4096, "256",              \
	    LIVE, JOB | DAEMON,                                                                                \
	    "Connections of an instance that `harpctl flows` can show at once; 0: none")                       \
	KEY(HARP_SPEED_MBPS, U32, "job", "speed_mbps", speed_mbps, "Mbit/s", 0, 10000000, "0",                 \
	    LIVE, JOB,                                                                                         \
	    "Speed to report to NCCL; 0: what the interface says, 10000 when it says nothing")                 \
	KEY(HARP_EAGER_BYTES, U32, "job", "eager_bytes", eager_bytes, "bytes", 4096, 16777216,                 \
	    "262144", LIVE, JOB,                                                                               \
	    "Bytes per comm that may travel before the receiver has posted a receive")                         \
	KEY(HARP_XDP_BYTES_MAX, U32, "job", "xdp_bytes_max", xdp_bytes_max, "bytes", 0,                        \
	    4294967295, "0", LIVE, JOB,                                                                        \
	    "With path auto, messages of up to this many bytes go over AF_XDP, in generic mode too, and "      \
	    "longer ones over kernel TCP. 0: by the profile, else by a table of the NIC's modes. DPDK ports "  \
	    "carry all messages")                                                                              \
	KEY(HARP_PROFILE, TEXT, "job", "profile", profile, "file", 0, 255, "", LIVE, JOB,                      \
	    "Profile that says, for each NIC and group of peers, which messages go over AF_XDP with path "     \
	    "auto. Empty: /etc/harp/profile.toml, where it exists")                                            \
	KEY(HARP_TUNER, CHOICE, "job", "tuner", tuner, "auto|off", 0, 0, "auto", LIVE, JOB,                    \
	    "Whether NCCL chooses algorithms and protocols by the times that `harpctl tune --nccl` measured. " \
	    "auto: where the profile has them. The same on every host of a job")                               \
	KEY(HARP_TRACE, TEXT, "", "", trace, "directory", 0, 255, "", LIVE, JOB,                               \
	    "Directory that a job's network events are written to, with NCCL_PROFILER_PLUGIN=harp, for "       \
	    "`harpctl trace`. `harpctl env` and `harpctl run` set both")                                       \
	KEY(HARP_LANES, U32, "lanes", "harp", lanes, "lanes", 1, 8, "1", LIVE, JOB,                            \
	    "Lanes on HARP's own stack that a comm opens over each NIC it uses")                               \
	KEY(HARP_KERNEL_LANES, U32, "lanes", "kernel", kernel_lanes, "lanes", 0, 16, "0", LIVE,                \
	    JOB,                                                                                               \
	    "Lanes on kernel sockets that a comm opens over each NIC it uses; 0: as many sockets as NCCL's "   \
	    "own transport would open there (NCCL_SOCKET_NTHREADS times NCCL_NSOCKS_PERTHREAD where set, 16 "  \
	    "on ENA, 4 on gVNIC, else 1)")                                                                     \
	KEY(HARP_RAILS, CHOICE, "lanes", "rails", rails, "own|backup|all", 0, 0, "backup", LIVE,               \
	    JOB,                                                                                               \
	    "Which NICs a comm uses. own: the one that NCCL gave it; backup: one more, when the own one "      \
	    "fails; all: every NIC that reaches the peer, at once")                                            \
	KEY(HARP_LANE_TIMEOUT_MS, MS, "lanes", "timeout_ms", lane_timeout_ns, "ms", 20, 60000,                 \
	    "500", LIVE, JOB,                                                                                  \
	    "A lane on which nothing is acknowledged for so long counts as dead while others of its comm "     \
	    "work: what it carried is sent again on them. A kernel lane has at least twice its "               \
	    "retransmission timeout (Linux: 200 ms or more)")                                                  \
	KEY(HARP_ENCRYPT, CHOICE, "lanes", "encrypt", encrypt, "auto|off|aes-256-gcm", 0, 0,                   \
	    "auto", LIVE, JOB,                                                                                 \
	    "Whether everything on a lane is encrypted. auto: where there is a key file; aes-256-gcm: "        \
	    "always, and a missing key is an error; off: never, and a key file is an error. The stronger of "  \
	    "environment and harp.toml holds: off against aes-256-gcm is an error. Needs OpenSSL's "           \
	    "libcrypto.so.3")                                                                                  \
	KEY(HARP_KEY_FILE, TEXT, "lanes", "key_file", key_file, "file", 0, 255, "", LIVE, JOB,                 \
	    "File with the pre-shared key, the same on every host: 64 hexadecimal digits (`openssl rand -hex " \
	    "32`), readable by its owner alone. Empty: /etc/harp/job.key, where it exists")                    \
	KEY(HARP_LIBDIR, TEXT, "", "", lib_dir, "directory", 0, 255, "", LIVE, JOB,                            \
	    "The folder of libharp-xdp.so and libharp-dpdk.so; empty: that of this library")                   \
	KEY(HARP_BACKGROUND_IDLE_US, US, "drive", "background_idle_us", background_idle_ns, "us",              \
	    10, 1000000, "1000", LIVE, JOB,                                                                    \
	    "Time without a call from NCCL after which the background poller polls the stack")                 \
	KEY(HARP_CONGESTION, CHOICE, "tcp", "congestion", congestion,                                          \
	    "default|newreno|cubic|dctcp|delay", 0, 0, "default", LIVE, JOB,                                   \
	    "Congestion control of HARP's TCP; default: cubic. dctcp is for networks whose switches "          \
	    "mark (ECN), and for all ranks")                                                                   \
	KEY(HARP_ECN, CHOICE, "tcp", "ecn", ecn, "default|off|request", 0, 0, "default", LIVE,                 \
	    JOB,                                                                                               \
	    "Explicit congestion notification of HARP's TCP; default: asked for by dctcp, agreed to "          \
	    "when a peer asks")                                                                                \
	KEY(HARP_CONNECT_TIMEOUT_MS, MS, "tcp", "connect_timeout_ms", connect_timeout_ns, "ms",                \
	    10, 3600000, "30000", LIVE, JOB,                                                                   \
	    "How long connect may take before it fails; a tenth of it where nobody is at any port of the "     \
	    "peer's, a third where its listener is closed")                                                    \
	KEY(HARP_USER_TIMEOUT_MS, MS, "tcp", "user_timeout_ms", user_timeout_ns, "ms", 100,                    \
	    86400000, "120000", LIVE, JOB,                                                                     \
	    "How long sent data may stay unacknowledged before the peer counts as gone (RFC 5482)")            \
	KEY(HARP_INITIAL_RTO_MS, MS, "tcp", "initial_rto_ms", initial_rto_ns, "ms", 5, 60000,                  \
	    "200", LIVE, JOB,                                                                                  \
	    "Retransmission timeout of HARP's TCP before it has measured a round trip; three times as long "   \
	    "after a retransmitted SYN. 200 is for data centers, where a SYN is lost in a full queue more "    \
	    "often than it travels that long; RFC 6298 says 1000")                                             \
	KEY(HARP_PROBE_INTERVAL_MS, MS, "tcp", "probe_interval_ms", probe_interval_ns, "ms", 0,                \
	    60000, "250", LIVE, JOB,                                                                           \
	    "How often a silent peer is probed while a request waits for it; 0: never")                        \
	KEY(HARP_CLOSE_LINGER_MS, MS, "tcp", "close_linger_ms", close_linger_ns, "ms", 0, 1000,                \
	    "50", LIVE, JOB, "How long a close may wait for the last acknowledgments")

/* What harpd reads, besides the NICs. */
#define HARP_CONFIG_DAEMON_KEYS(KEY)                                                                         \
	KEY(HARP_RUN_DIR, TEXT, "daemon", "run_dir", 0, "directory", 1, 90, "/run/harp", RESTART,            \
	    DAEMON | TOOL,                                                                                   \
	    "Where harpd keeps its socket, its state and the bpffs directory of what it pins; each "         \
	    "harpd of a machine needs its own")                                                              \
	KEY(HARP_SOCKET_GROUP, TEXT, "daemon", "socket_group", 0, "group", 0, 63, "", RESTART,               \
	    DAEMON,                                                                                          \
	    "Group that owns the socket, which is then closed to everybody else; empty: everybody may "      \
	    "connect, and users and groups decide who is given a lease")                                     \
	KEY(HARP_USERS, LIST, "daemon", "users", 0, "users", 0, 64, "", LIVE, DAEMON,                        \
	    "Users, by name or number, who may have leases besides root; * for all. A lease lets "           \
	    "its holder send any frame on its NIC")                                                          \
	KEY(HARP_GROUPS, LIST, "daemon", "groups", 0, "groups", 0, 64, "harp", LIVE, DAEMON,                 \
	    "Groups, by name or number, whose members may have leases. One that does not exist has no "      \
	    "members")                                                                                       \
	KEY(HARP_ALLOW_NET_ADMIN_CONTAINERS, BOOL, "daemon", "allow_net_admin_containers", 0, "",            \
	    0, 1, "false", LIVE, DAEMON,                                                                     \
	    "Whether a process of another network namespace may have a lease though its capability "         \
	    "bounding set has CAP_NET_ADMIN in harpd's user namespace. With the lease's AF_XDP socket it "   \
	    "can reach the host's network namespace and change it")                                          \
	KEY(HARP_LEASES_PER_UID, U32, "daemon", "leases_per_uid", 0, "leases", 1, 4096, "64",                \
	    LIVE, DAEMON, "Leases that one user may hold at a time")                                         \
	KEY(HARP_CONNECTIONS_PER_UID, U32, "daemon", "connections_per_uid", 0, "connections", 1,             \
	    4096, "128", LIVE, DAEMON,                                                                       \
	    "Connections to the socket that one user may hold at a time")                                    \
	KEY(HARP_PORTS_PER_INSTANCE, U32, "daemon", "ports_per_instance", 0, "ports", 0, 4096,               \
	    "0", LIVE, DAEMON,                                                                               \
	    "Local ports of a lease; 0: 256, or fewer where the NIC's range does not give so many to twice " \
	    "its queues")                                                                                    \
	KEY(HARP_PORT_REST_MS, MS, "daemon", "port_rest_ms", 0, "ms", 0, 3600000, "60000", LIVE,             \
	    DAEMON,                                                                                          \
	    "How long a lease's ports rest before they are leased again, so that nothing late reaches "      \
	    "their next holder")                                                                             \
	KEY(HARP_FRAMES_MAX, U32, "daemon", "frames_max", 0, "frames", 1024, 1048576, "65536",               \
	    LIVE, DAEMON, "Packet buffers that a lease gets at most, whatever the job asks for")             \
	KEY(HARP_HUGE_PAGES, U32, "daemon", "huge_pages", 0, "pages of 2 MiB", 0, 1048576, "0",              \
	    RESTART, DAEMON,                                                                                 \
	    "Huge pages that the host shall have while harpd runs; 0: as many as there are. Packet buffers " \
	    "lie in them where there are enough")                                                            \
	KEY(HARP_PREPARE, BOOL, "daemon", "prepare", 0, "", 0, 1, "true", RESTART, DAEMON,                   \
	    "Whether harpd may change NICs and the host as [[nic]] says and put them back when it stops; "   \
	    "false: it leases what is there")                                                                \
	KEY(HARP_LOG_LEVEL, CHOICE, "daemon", "log_level", 0, "error|warning|info|debug", 0, 0,              \
	    "info", LIVE, DAEMON, "What harpd logs: lines of this level and above")                          \
	KEY(HARP_METRICS_ADDRESS, TEXT, "metrics", "address", 0, "address", 1, 63, "127.0.0.1",              \
	    RESTART, DAEMON,                                                                                 \
	    "Address that harpd serves Prometheus on; it asks nobody who they are")                          \
	KEY(HARP_METRICS_PORT, U32, "metrics", "port", 0, "", 0, 65535, "9747", RESTART, DAEMON,             \
	    "Port that harpd serves Prometheus on; 0: it does not")

/* One [[nic]] of harp.toml each: what harpd makes of a NIC and puts back when it stops. */
#define HARP_CONFIG_NIC_KEYS(KEY)                                                                             \
	KEY(IFNAME, TEXT, "nic", "ifname", 0, "interface", 1, 15, "", RESTART, DAEMON,                        \
	    "The interface; every [[nic]] needs one, and none may come twice")                                \
	KEY(QUEUES, U32, "nic", "queues", 0, "queues", 0, 256, "0", RESTART, DAEMON,                          \
	    "Queues that the NIC shall have; 0: as many as it has")                                           \
	KEY(LEASE_QUEUES, CORES, "nic", "lease_queues", 0, "queues", 0, 64, "", LIVE, DAEMON,                 \
	    "Queues that may be leased, 1,3-7 say; empty: all of them")                                       \
	KEY(PORTS, PORTS, "nic", "ports", 0, "ports", 1024, 65535, "61000-65535", RESTART, DAEMON,            \
	    "Local ports that belong to HARP on this host (ip_local_reserved_ports) and are cut into the "    \
	    "leases' blocks")                                                                                 \
	KEY(XDP_MODE, CHOICE, "nic", "xdp_mode", 0, "auto|generic|native", 0, 0, "auto", RESTART,             \
	    DAEMON,                                                                                           \
	    "How the XDP program is attached. auto: native where the kernel loses nothing by it, else "       \
	    "not at all, and the NIC is not leased; generic: for jobs with HARP_PATH=xdp on any NIC, at the " \
	    "cost of the kernel's own traffic")                                                               \
	KEY(RSS, TEXT, "nic", "rss", 0, "rule", 0, 1023, "", LIVE, DAEMON,                                    \
	    "As HARP_RSS, for this NIC. Empty: ask the NIC")                                                  \
	KEY(ALLOW_SOURCES, LIST, "nic", "allow_sources", 0, "prefixes", 0, 64, "", LIVE, DAEMON,              \
	    "IPv4 and IPv6 prefixes that may send to HARP's ports: 10.0.0.0/8, fd00::/8. The XDP program "    \
	    "drops all other packets for them, and ICMP errors about HARP's connections from elsewhere; a "   \
	    "family without a prefix is closed. Empty: every source. DPDK ports and processes without harpd " \
	    "have no such list")                                                                              \
	KEY(RX_RING, U32, "nic", "rx_ring", 0, "packets", 0, 65536, "0", RESTART, DAEMON,                     \
	    "Length of the NIC's receive rings; 0: as it is")                                                 \
	KEY(TX_RING, U32, "nic", "tx_ring", 0, "packets", 0, 65536, "0", RESTART, DAEMON,                     \
	    "Length of the NIC's transmit rings; 0: as it is")                                                \
	KEY(COALESCE, CHOICE, "nic", "coalesce", 0, "keep|low|adaptive|set", 0, 0, "keep",                    \
	    RESTART, DAEMON,                                                                                  \
	    "Interrupt coalescing. keep: as it is; low: an interrupt for each packet; adaptive: the driver "  \
	    "decides; set: coalesce_rx_us and coalesce_tx_us")                                                \
	KEY(COALESCE_RX_US, US, "nic", "coalesce_rx_us", 0, "us", 0, 10000, "8", RESTART, DAEMON,             \
	    "Longest wait of a received packet for its interrupt, with coalesce = \"set\"")                   \
	KEY(COALESCE_TX_US, US, "nic", "coalesce_tx_us", 0, "us", 0, 10000, "8", RESTART, DAEMON,             \
	    "Longest wait of a completion for its interrupt, with coalesce = \"set\"")                        \
	KEY(DEFER_IRQS, U32, "nic", "defer_irqs", 0, "polls", 0, 1000, "0", RESTART, DAEMON,                  \
	    "napi_defer_hard_irqs: empty polls before interrupts are enabled again; 0: as it is")             \
	KEY(GRO_FLUSH_US, US, "nic", "gro_flush_us", 0, "us", 0, 10000, "0", RESTART, DAEMON,                 \
	    "gro_flush_timeout, which goes with defer_irqs; 0: as it is")                                     \
	KEY(LRO, CHOICE, "nic", "lro", 0, "keep|on|off", 0, 0, "keep", RESTART, DAEMON,                       \
	    "Large receive offload; most drivers have no native XDP with it")                                 \
	KEY(GRO_HW, CHOICE, "nic", "gro_hw", 0, "keep|on|off", 0, 0, "keep", RESTART, DAEMON,                 \
	    "GRO in hardware, which merges packets before XDP sees them")                                     \
	KEY(GRO, CHOICE, "nic", "gro", 0, "keep|on|off", 0, 0, "keep", RESTART, DAEMON,                       \
	    "GRO of the kernel's own traffic")                                                                \
	KEY(TSO, CHOICE, "nic", "tso", 0, "keep|on|off", 0, 0, "keep", RESTART, DAEMON,                       \
	    "Segmentation offload of the kernel's own traffic")                                               \
	KEY(RX_CHECKSUM, CHOICE, "nic", "rx_checksum", 0, "keep|on|off", 0, 0, "keep", RESTART,               \
	    DAEMON, "Receive checksum offload")                                                               \
	KEY(TX_CHECKSUM, CHOICE, "nic", "tx_checksum", 0, "keep|on|off", 0, 0, "keep", RESTART,               \
	    DAEMON, "Transmit checksum offload of the kernel's own traffic")                                  \
	KEY(IRQ_AFFINITY, CHOICE, "nic", "irq_affinity", 0, "keep|local|cores", 0, 0, "keep",                 \
	    RESTART, DAEMON,                                                                                  \
	    "Where the queues' interrupts go. keep: as they are; local: one after the other to the cores of " \
	    "the NIC's NUMA node; cores: to those of irq_cores")                                              \
	KEY(IRQ_CORES, CORES, "nic", "irq_cores", 0, "cores", 0, 64, "", RESTART, DAEMON,                     \
	    "Cores of the queues' interrupts, queue 0 first, with irq_affinity = \"cores\"")

/* One [[dpdk]] of harp.toml each: a port that harpd leases whole to one job at a time, whose own
 * DPDK drives it. harpd never opens it, so everything may change live, and ports come and go with a
 * reload. */
#define HARP_CONFIG_DPDK_KEYS(KEY)                                                                           \
	KEY(DEVICE, TEXT, "dpdk", "device", 0, "device", 1, 511, "", LIVE, DAEMON,                           \
	    "PCI address of the NIC (0000:00:06.0), or name of a virtual device, with DPDK's arguments for " \
	    "it after a comma (net_memif0,role=client,id=0). Every [[dpdk]] needs one, and none may come "   \
	    "twice")                                                                                         \
	KEY(NAME, TEXT, "dpdk", "name", 0, "name", 0, 15, "", LIVE, DAEMON,                                  \
	    "What jobs and people call it; none may come twice. Empty: the device up to its first comma, "   \
	    "its first 15 bytes")                                                                            \
	KEY(ADDRESSES, LIST, "dpdk", "addresses", 0, "addresses", 0, 15, "", LIVE, DAEMON,                   \
	    "The port's own addresses with their prefix lengths, 10.9.0.1/24 or fd00:9::1/64: HARP answers " \
	    "ARP, neighbor discovery and ping for them itself")                                              \
	KEY(GATEWAYS, LIST, "dpdk", "gateways", 0, "gateways", 0, 2, "", LIVE, DAEMON,                       \
	    "Default gateways, one of each family")                                                          \
	KEY(ROUTES, LIST, "dpdk", "routes", 0, "routes", 0, 32, "", LIVE, DAEMON,                            \
	    "Further routes, 10.8.0.0/16@10.9.0.254 each")                                                   \
	KEY(MTU, U32, "dpdk", "mtu", 0, "bytes", 0, 16000, "0", LIVE, DAEMON,                                \
	    "MTU of the port; 0: what the device has, at most 1500 unless it says so")                       \
	KEY(VLAN, U32, "dpdk", "vlan", 0, "", 0, 4094, "0", LIVE, DAEMON,                                    \
	    "VLAN that all its packets carry; 0: none")                                                      \
	KEY(QUEUES, U32, "dpdk", "queues", 0, "queues", 1, 64, "1", LIVE, DAEMON,                            \
	    "Queues that a job may have of it, each with a stack of its own")                                \
	KEY(FRAMES, U32, "dpdk", "frames", 0, "frames", 0, 1048576, "0", LIVE, DAEMON,                       \
	    "Packet buffers of each queue; 0: 8192")                                                         \
	KEY(DEFAULT_ROUTE, BOOL, "dpdk", "default_route", 0, "", 0, 1, "false", LIVE, DAEMON,                \
	    "Whether it may be taken though the host's default route leaves by its interface: the host is "  \
	    "cut off while a job has it")

/* Variables that only harpctl, harpd or the tests look at. */
#define HARP_CONFIG_TOOL_KEYS(KEY)                                                                     \
	KEY(HARP_CONFIG, TEXT, "", "", 0, "file", 0, 1023, "", RESTART, DAEMON | TOOL,                 \
	    "The configuration file. Empty: /etc/harp/harp.toml, which may be absent; a file that is " \
	    "named must be there")                                                                     \
	KEY(HARP_BUILD, TEXT, "", "", 0, "directory", 0, 1023, "", RESTART, TOOL,                      \
	    "The build tree that a source tree's harpctl uses; empty: build/ next to harp/")           \
	KEY(HARP_SEEDS, U32, "", "", 0, "seeds", 1, 100000000, "20000", RESTART, TOOL,                 \
	    "Seeds of the simulator that `make test-long` runs")

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
enum harp_config_apply { HARP_CONFIG_LIVE = 0, HARP_CONFIG_RESTART = 1 };
/* Who reads a key: a set. */
#define HARP_CONFIG_JOB 1u
#define HARP_CONFIG_DAEMON 2u
#define HARP_CONFIG_TOOL 4u

struct harp_config_key {
	const char *name; /* the variable; of a key of an array the name within it, in capitals */
	const char *table, *key; /* "": a variable only; "nic", "dpdk": arrays, [[nic]], [[dpdk]] */
	const char *unit, *preset, *help;
	uint64_t min, max;
	uint32_t type;    /* enum harp_config_type */
	uint32_t apply;   /* enum harp_config_apply */
	uint32_t readers; /* HARP_CONFIG_JOB and so on */
};
/* The keys of all lists, job keys first, then harpd's, NICs', DPDK ports', tools'. */
HARP_API unsigned harp_config_count(void);
/* NULL past the end. */
HARP_API const struct harp_config_key *harp_config_key(unsigned index);

#ifdef __cplusplus
}
#endif

#endif
