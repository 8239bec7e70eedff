/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plugin.h - the one interface between the ABI tables (abi.c and abi_data.c, which alone know NCCL's
 * version numbers) and everything else.
 *
 * Results are 0 or -errno; abi.c alone turns them into ncclResult_t:
 *   peer gone: ECONNRESET EPIPE ECONNREFUSED ETIMEDOUT EHOSTUNREACH ENETUNREACH EPROTO
 *              EBADMSG ECONNABORTED                                        -> ncclRemoteError
 *   EMSGSIZE (message truncated), EPROTONOSUPPORT (forced path not to be had,
 *              foreign or damaged handle), EKEYREJECTED (a proof that does
 *              not hold: pre-shared keys that differ)                      -> ncclInvalidUsage
 *   EINVAL ENODEV EOPNOTSUPP                                               -> ncclInvalidArgument
 *   EBADF EFAULT                                                           -> ncclInternalError
 *   everything else                                                        -> ncclSystemError
 * Whoever finds an error logs one WARN line that names peer, cause and remedy; upper layers don't
 * log it again.
 */
#ifndef HARP_PLUGIN_H
#define HARP_PLUGIN_H

#include "harp_host.h"

#define PLUGIN_REQUESTS_MAX 32u
#define PLUGIN_HANDLE_BYTES 128u
#define PLUGIN_DEVICES_MAX 32u

/* log.c: NCCL's logger, and nothing else, ever. Before init and after the last finalize silent. */
enum plugin_log_level { PLUGIN_WARN, PLUGIN_INFO, PLUGIN_TRACE };
void plugin_log(enum plugin_log_level level, const char *func, int line, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
#define WARN(...) plugin_log(PLUGIN_WARN, __func__, __LINE__, __VA_ARGS__)
#define INFO(...) plugin_log(PLUGIN_INFO, __func__, __LINE__, __VA_ARGS__)

/* config.c: HARP_* variables and what harpd says of harp.toml, read at the first init. harp_config.h has the
 * list of keys with their defaults. */
enum plugin_path { PATH_AUTO, PATH_XDP, PATH_KERNEL, PATH_DPDK };
enum plugin_huge_pages { HUGE_PAGES_AUTO, HUGE_PAGES_NEVER, HUGE_PAGES_REQUIRE };
enum plugin_daemon { DAEMON_AUTO, DAEMON_OFF, DAEMON_REQUIRE };
enum plugin_drive { DRIVE_AUTO, DRIVE_INLINE, DRIVE_DEDICATED };
enum plugin_rails { RAILS_OWN, RAILS_BACKUP, RAILS_ALL };
enum plugin_encrypt { ENCRYPT_AUTO, ENCRYPT_OFF, ENCRYPT_AES_256_GCM };
#define PLUGIN_CORES_MAX 64u
struct plugin_cores {
	uint32_t count;
	uint16_t core[PLUGIN_CORES_MAX];
};
struct plugin_config {
	enum plugin_path path;                  /* HARP_PATH=auto|xdp|kernel|dpdk */
	char dpdk[4096];                        /* HARP_DPDK: port specs with spaces between */
	enum plugin_huge_pages dpdk_huge_pages; /* HARP_DPDK_HUGE_PAGES=auto|never|require */
	uint32_t dpdk_memory_mib;               /* HARP_DPDK_MEMORY_MIB, default 256 */
	char dpdk_args[1024];                   /* HARP_DPDK_ARGS, for EAL */
	uint32_t xdp_bytes_max;                 /* HARP_XDP_BYTES_MAX; path_policy.h */
	char profile[256]; /* HARP_PROFILE; empty: HARP_CONFIG_PROFILE, if it exists */
	uint32_t eager_bytes;                   /* HARP_EAGER_BYTES, default 262144 */
	uint32_t frames;                        /* HARP_FRAMES, default 8192 */
	uint64_t connect_timeout_ns;            /* HARP_CONNECT_TIMEOUT_MS, default 30000 */
	uint64_t user_timeout_ns;               /* HARP_USER_TIMEOUT_MS, default 120000 */
	uint64_t initial_rto_ns;                /* HARP_INITIAL_RTO_MS, default 200 */
	uint64_t probe_interval_ns;             /* HARP_PROBE_INTERVAL_MS, default 250; 0: off */
	uint64_t close_linger_ns;               /* HARP_CLOSE_LINGER_MS, default 50 */
	uint64_t guardian_idle_ns; /* HARP_GUARDIAN_IDLE_US, default 1000: nobody polled so long */
	uint32_t speed_mbps;       /* HARP_SPEED_MBPS, 0: from the interface */
	enum harp_xdp_mode xdp_mode;     /* HARP_XDP_MODE=auto|generic|native */
	enum harp_congestion congestion; /* HARP_CONGESTION=default|newreno|cubic|dctcp|delay */
	enum harp_ecn ecn;               /* HARP_ECN=default|off|request */
	char ifname[256];                /* HARP_IFNAME, else NCCL_SOCKET_IFNAME; NCCL's syntax */
	bool ifname_set; /* named by the user: it may carry the default route */
	bool ifname_is_nccl; /* ifname is NCCL_SOCKET_IFNAME's: it says nothing of DPDK ports */
	int family;          /* NCCL_SOCKET_FAMILY: 0, AF_INET, AF_INET6 */
	/* NCCL_SOCKET_NTHREADS and NCCL_NSOCKS_PERTHREAD; -1: not set. parallel.c says what follows. */
	int nccl_threads, nccl_sockets_per_thread;
	/* Lanes of a comm over each NIC that it uses. kernel_lanes and kernel_threads 0: as NCCL's socket
	 * transport would have on that NIC. */
	uint32_t lanes, kernel_lanes, kernel_threads;
	enum plugin_rails rails;     /* HARP_RAILS=own|backup|all */
	uint64_t lane_timeout_ns;    /* HARP_LANE_TIMEOUT_MS, default 500 */
	enum plugin_encrypt encrypt; /* HARP_ENCRYPT=auto|off|aes-256-gcm */
	char key_file[256];          /* HARP_KEY_FILE; empty: HARP_CONFIG_KEY_FILE, if it exists */
	char lib_dir[256];           /* HARP_LIBDIR, else where this .so lies */
	enum plugin_daemon daemon;   /* HARP_DAEMON=auto|off|require */
	char socket[108];            /* HARP_SOCKET; empty: HARP_LEASE_SOCKET */
	uint32_t instances;          /* HARP_INSTANCES, for each device */
	uint32_t port_min, port_max; /* HARP_PORT_MIN, HARP_PORT_MAX: without harpd */
	enum plugin_drive drive;     /* HARP_DRIVE=auto|inline|dedicated */
	struct plugin_cores cores;   /* HARP_CORES; none: harpd's suggestion or any */
	uint64_t spin_ns;            /* HARP_SPIN_US: at most so long without work before sleep */
	uint32_t page_flows;         /* HARP_PAGE_FLOWS */
	char label[64];              /* HARP_LABEL; empty: the program's name */
	char rss[1024];              /* HARP_RSS, for harp_rss_parse(); empty: ask the NIC */
};
const struct plugin_config *plugin_config(void);
/* A path asked for by name that is HARP's own TCP: no kernel socket carries data. */
static inline bool plugin_path_is_harp(enum plugin_path path)
{
	return path == PATH_XDP || path == PATH_DPDK;
}
/* Reads settings (of harp.toml, NULL before they are known) and the environment, which beats them, except that it
 * cannot take back required encryption. -EINVAL names variable, value and range through WARN; what was read before
 * then stays. */
int plugin_config_load(const char *settings);

/* device_load.c: the interfaces and ports we offer, stable for the life of the process's first init. */
struct device {
	char ifname[16];
	uint32_t ifindex;
	char pci_path[256]; /* empty: none */
	uint64_t guid;
	uint32_t speed_mbps;
	uint32_t mtu_bytes;
	int numa_node;
	bool has_default_route;
	bool segments; /* takes GSO packets of the kernel's: TSO, or GSO in software */
	/* Of the network namespace whose NIC and addresses these are, harpd's; 0: this process's own.
	 * Elsewhere there are no kernel sockets of ours: such a device is HARP's or nothing. A DPDK port has a number
	 * of its own. */
	uint64_t netns;
	bool has_v4, has_v6;
	struct harp_addr addr_v4, addr_v6; /* first usable address of each family */
	uint32_t scope_id;                 /* of addr_v6 when link-local */
	/* A DPDK port: unknown to the kernel, and so of another namespace (netns), its own; ifindex 0. */
	bool dpdk;
	const char *port; /* its text (harp_host.h), when it is this process's; NULL: harpd's */
	uint32_t queues;  /* that it shall have, at least 1 */
	char driver[32];  /* "net_memif", once it was opened */
};
/* Opens a DPDK port, plugin_device(dev), until the last context goes. -errno: why (one line) says the reason. */
typedef int plugin_port_open(int dev, struct harp_instance_port *out, char *why, size_t why_len);
/* By every first context: DPDK ports are opened by it. Failures have been said by WARN. */
int plugin_devices_load(plugin_port_open *open);
/* DPDK ports that could not be used at the load, and something else is. */
unsigned plugin_ports_refused(void);
int plugin_device_count(void);
const struct device *plugin_device(int dev); /* NULL when out of range */
/* What names the link of an address that is reached through the device: 0 unless it is link-local. */
static inline uint32_t device_scope_id(const struct device *device, const struct harp_addr *addr)
{
	return harp_addr_is_link_local(addr) ? device->ifindex : 0;
}

/* plugin.c: contexts; process-wide state comes with the first and goes with the last. */
struct plugin_ctx;
struct listen_comm;
struct comm; /* send or receive end of one connection */
struct request;

int plugin_init(struct plugin_ctx **out, uint64_t comm_id, int traffic_class);
int plugin_finalize(struct plugin_ctx *ctx); /* NULL is accepted */
int plugin_listen(struct plugin_ctx *ctx, int dev, void *handle, struct listen_comm **out);
/* Pending: 0 with *out NULL. handle is private to this connection between calls; connect keeps its
 * progress in a table of the context keyed by the handle's address and secret. */
int plugin_connect(struct plugin_ctx *ctx, int dev, void *handle, int traffic_class,
		   struct comm **out);
/* Pending likewise. An error is of one peer that was let in and has no comm: the listen comm goes on. */
int plugin_accept(struct listen_comm *listen, struct comm **out);
int plugin_close_listen(struct listen_comm *listen);
/* memory: the registration that data lies in, from plugin_reg_mr(); NULL: not said. */
int plugin_isend(struct comm *comm, const void *data, size_t size, int tag, void *memory,
		 struct request **out);
int plugin_irecv(struct comm *comm, void *data, size_t size, int tag, void *memory,
		 struct request **out);
/* Host memory of a comm's: where a NIC can read what is sent, it is sent in place. plugin_dereg_mr(): memory.h. */
int plugin_reg_mr(struct comm *comm, const void *data, size_t size, void **out);
int plugin_dereg_mr(void *handle);
/* done: 0 or 1, always written. size: real size of the message, NULL accepted. */
int plugin_test(struct request *request, int *done, size_t *size);
/* Bounded, with requests in flight too; never touches the requests' buffers after it returns. */
int plugin_close(struct comm *comm);

#endif
