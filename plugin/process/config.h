/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.h - HARP_* variables and harpd's settings from harp.toml, read at the first init.
 * harp_config.h lists the keys with their defaults.
 */
#ifndef HARP_PLUGIN_CONFIG_H
#define HARP_PLUGIN_CONFIG_H

#include "harp_host.h"

enum plugin_path { PATH_AUTO, PATH_XDP, PATH_KERNEL, PATH_DPDK };
enum plugin_huge_pages { HUGE_PAGES_AUTO, HUGE_PAGES_NEVER, HUGE_PAGES_REQUIRE };
enum plugin_daemon { DAEMON_AUTO, DAEMON_OFF, DAEMON_REQUIRE };
enum plugin_tuner { TUNER_AUTO, TUNER_OFF };
enum plugin_rails { RAILS_OWN, RAILS_BACKUP, RAILS_ALL };
enum plugin_encrypt { ENCRYPT_AUTO, ENCRYPT_OFF, ENCRYPT_AES_256_GCM };
struct plugin_config {
	enum plugin_path path;                  /* HARP_PATH=auto|xdp|kernel|dpdk */
	char dpdk[4096];                        /* HARP_DPDK: port specs, separated by spaces */
	enum plugin_huge_pages dpdk_huge_pages; /* HARP_DPDK_HUGE_PAGES=auto|never|require */
	uint32_t dpdk_memory_mib;               /* HARP_DPDK_MEMORY_MIB, default 256 */
	char dpdk_args[1024];                   /* HARP_DPDK_ARGS, for EAL */
	uint32_t xdp_bytes_max;                 /* HARP_XDP_BYTES_MAX; path_policy.h */
	char profile[256];           /* HARP_PROFILE; empty: HARP_CONFIG_PROFILE, if it exists */
	enum plugin_tuner tuner;     /* HARP_TUNER=auto|off */
	char trace[256];             /* HARP_TRACE, read by libnccl-profiler-harp.so */
	char capture[256];           /* HARP_CAPTURE: directory; empty: off */
	uint32_t eager_bytes;        /* HARP_EAGER_BYTES, default 262144 */
	uint32_t frames;             /* HARP_FRAMES, default 8192 */
	uint64_t connect_timeout_ns; /* HARP_CONNECT_TIMEOUT_MS, default 30000 */
	uint64_t user_timeout_ns;    /* HARP_USER_TIMEOUT_MS, default 120000 */
	uint64_t initial_rto_ns;     /* HARP_INITIAL_RTO_MS, default 200 */
	uint64_t probe_interval_ns;  /* HARP_PROBE_INTERVAL_MS, default 250; 0: off */
	uint64_t close_linger_ns;    /* HARP_CLOSE_LINGER_MS, default 50 */
	uint64_t background_idle_ns; /* HARP_BACKGROUND_IDLE_US, default 1000 */
	uint32_t speed_mbps;         /* HARP_SPEED_MBPS, 0: from the interface */
	enum harp_xdp_mode xdp_mode; /* HARP_XDP_MODE=auto|generic|native */
	enum harp_congestion congestion; /* HARP_CONGESTION=default|newreno|cubic|dctcp|delay */
	enum harp_ecn ecn;               /* HARP_ECN=default|off|request */
	char ifname[256];                /* HARP_IFNAME, else NCCL_SOCKET_IFNAME; NCCL's syntax */
	bool ifname_set;     /* the user named the interface: attach even to the default route's */
	bool ifname_is_nccl; /* ifname is NCCL_SOCKET_IFNAME: it does not select DPDK ports */
	int family;          /* NCCL_SOCKET_FAMILY: 0, AF_INET, AF_INET6 */
	/* NCCL_SOCKET_NTHREADS and NCCL_NSOCKS_PERTHREAD; -1: not set. See device_sysfs.c. */
	int nccl_threads, nccl_sockets_per_thread;
	/* Lanes of a comm per NIC. kernel_lanes 0: as many as NCCL's socket transport has sockets
	 * on that NIC. */
	uint32_t lanes, kernel_lanes;
	enum plugin_rails rails;     /* HARP_RAILS=own|backup|all */
	uint64_t lane_timeout_ns;    /* HARP_LANE_TIMEOUT_MS, default 500 */
	enum plugin_encrypt encrypt; /* HARP_ENCRYPT=auto|off|aes-256-gcm */
	char key_file[256];          /* HARP_KEY_FILE; empty: HARP_CONFIG_KEY_FILE, if it exists */
	char lib_dir[256];           /* HARP_LIBDIR, else the directory of this library */
	enum plugin_daemon daemon;   /* HARP_DAEMON=auto|off|require */
	char socket[108];            /* HARP_SOCKET; empty: HARP_LEASE_SOCKET */
	uint32_t instances;          /* HARP_INSTANCES, for each device */
	uint32_t port_min, port_max; /* HARP_PORT_MIN, HARP_PORT_MAX: without harpd */
	uint32_t page_flows;         /* HARP_PAGE_FLOWS */
	char label[64];              /* HARP_LABEL; empty: the program's name */
	char rss[1024];              /* HARP_RSS, for harp_rss_parse(); empty: query the NIC */
};
const struct plugin_config *plugin_config(void);
/* Does the path force HARP's own TCP? Then no kernel socket carries data. */
static inline bool plugin_path_is_harp(enum plugin_path path)
{
	return path == PATH_XDP || path == PATH_DPDK;
}
/* Reads harpd's settings (NULL: not known yet), then the environment, which overrides them but
 * cannot turn off required encryption. -EINVAL: a bad value; a WARN names variable, value and
 * range, and the previous configuration stays. */
int plugin_config_load(const char *settings);

/*
 * Fills *out: defaults, overridden by settings (of harp.toml, from WELCOME: one NAME=VALUE per
 * line; NULL: none), overridden by the environment (NAME=VALUE strings, then NULL). Each invalid
 * value gets one WARN. So does an unknown HARP_ variable if settings is NULL; later calls do not
 * repeat it. -EINVAL: a bad value; *out is unusable.
 */
int config_read(struct plugin_config *out, char *const *environment, const char *settings);

#endif
