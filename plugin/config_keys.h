/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_keys.h - every environment variable of HARP, once: parsing, the hint for a misspelt name
 * and the reference in docs/ come from this list.
 *
 * KEY(name, type, field, unit, min, max, default, help)
 * type: U32     a number into a uint32_t field
 *       MS, US  milliseconds, microseconds into a uint64_t field in nanoseconds
 *       CHOICE  one of the words in unit, in the order of the field's enum
 *       TEXT    at most 255 characters
 *       TOOL    read by harpctl or the tests, not by the plugin
 * An empty value counts as unset.
 */
#ifndef HARP_PLUGIN_CONFIG_KEYS_H
#define HARP_PLUGIN_CONFIG_KEYS_H

#define CONFIG_KEYS(KEY)                                                                              \
	KEY(HARP_PATH, CHOICE, path, "auto|xdp|kernel", 0, 0, "auto",                                 \
	    "What carries the data: AF_XDP and HARP's TCP, kernel TCP, or the best to be had. "       \
	    "A path asked for by name that cannot be had is an error")                                \
	KEY(HARP_IFNAME, TEXT, ifname, "interfaces", 0, 255, "",                                      \
	    "Interfaces to offer, in the syntax of NCCL_SOCKET_IFNAME and before it: a list of "      \
	    "prefixes; with = in front whole names; with ^ in front those not to take")               \
	KEY(HARP_XDP_MODE, CHOICE, xdp_mode, "auto|generic|native", 0, 0, "auto",                     \
	    "Where the XDP program is attached; auto: wherever the kernel's own TCP loses nothing")   \
	KEY(HARP_CONGESTION, CHOICE, congestion, "default|newreno|cubic|dctcp|delay", 0, 0,           \
	    "default",                                                                                \
	    "Congestion control of HARP's TCP; default: cubic. dctcp is for networks whose switches " \
	    "mark (ECN), and for all ranks")                                                          \
	KEY(HARP_ECN, CHOICE, ecn, "default|off|request", 0, 0, "default",                            \
	    "Explicit congestion notification of HARP's TCP; default: asked for by dctcp, agreed to " \
	    "when a peer asks")                                                                       \
	KEY(HARP_SPEED_MBPS, U32, speed_mbps, "Mbit/s", 0, 10000000, "0",                             \
	    "Speed to report to NCCL; 0: what the interface says, 10000 when it says nothing")        \
	KEY(HARP_EAGER_BYTES, U32, eager_bytes, "bytes", 4096, 16777216, "262144",                    \
	    "Bytes per comm that may travel before the receiver has posted a receive")                \
	KEY(HARP_FRAMES, U32, frames, "frames", 1024, 1048576, "8192",                                \
	    "Packet buffers of each AF_XDP queue, 2048 or 4096 bytes each")                           \
	KEY(HARP_CONNECT_TIMEOUT_MS, MS, connect_timeout_ns, "ms", 10, 3600000, "30000",              \
	    "How long connect and accept may take before they fail")                                  \
	KEY(HARP_USER_TIMEOUT_MS, MS, user_timeout_ns, "ms", 100, 86400000, "120000",                 \
	    "How long sent data may stay unacknowledged before the peer counts as gone (RFC 5482)")   \
	KEY(HARP_PROBE_INTERVAL_MS, MS, probe_interval_ns, "ms", 0, 60000, "250",                     \
	    "How often a silent peer is probed while a request waits for it; 0: never")               \
	KEY(HARP_CLOSE_LINGER_MS, MS, close_linger_ns, "ms", 0, 1000, "50",                           \
	    "How long a close may wait for the last acknowledgements")                                \
	KEY(HARP_GUARDIAN_IDLE_US, US, guardian_idle_ns, "us", 10, 1000000, "1000",                   \
	    "After how long without a call from NCCL the guardian thread drives the stack")           \
	KEY(HARP_LIBDIR, TEXT, lib_dir, "directory", 0, 255, "",                                      \
	    "Where libharp-xdp.so lies; empty: beside this library")

/* NCCL's own variables that HARP reads too: name, help. */
#define CONFIG_NCCL_KEYS(KEY)                                                                      \
	KEY(NCCL_SOCKET_IFNAME, "Interfaces to offer when HARP_IFNAME is unset")                   \
	KEY(NCCL_SOCKET_FAMILY, "AF_INET or AF_INET6: addresses of that family only")              \
	KEY(NCCL_COMM_ID, "Without any interface named: prefer those on the subnet of its address")

#endif
