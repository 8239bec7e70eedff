/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp_host.h - a stack on a NIC that is shared with the kernel: AF_XDP queue, XDP program, and the
 * host's own addresses, routes and neighbors by rtnetlink.
 *
 * An *instance* is such a stack. In stand-alone mode the process opens it, which needs root or
 * CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF. The process then holds the XDP link, which is detached
 * when it exits; its instances on several queues of an interface share the link. A leased instance
 * comes from harpd and needs no privileges (daemon_socket). An instance changes no MTU, queue count
 * or offload. Its stack's clock is CLOCK_MONOTONIC.
 */
#ifndef HARP_HOST_H
#define HARP_HOST_H

#include "harp.h"
#include "harp_lease.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------
 * DPDK ports as text (docs/dpdk.md): a device of DPDK, and HARP's configuration of it.
 *
 *   DEVICE[;key=value]...    "net_memif0,role=client,id=0;ip=10.9.0.1/24;ip=fd00:9::1/64;mtu=9000"
 *
 * DEVICE: a PCI address, or a virtual device with its arguments after a comma. Keys: ip ADDRESS/LEN
 * (repeatable), gw ADDRESS (the default route, one per family), route PREFIX/LEN@GATEWAY
 * (repeatable), name (1 to 15 bytes; else DEVICE up to its first comma or 15 bytes), mtu, vlan,
 * queues, frames, take=default-route (take the device from the kernel even if the host's
 * default route uses it). No spaces.
 */
#define HARP_PORT_PREFIX "dpdk:"    /* prefix of a port's text in place of an interface name */
#define HARP_PORT_ADDRESSES_MAX 15u /* the stack has one more: the IPv6 link-local one */
#define HARP_PORT_ROUTES_MAX 32u
#define HARP_PORT_DEVICE_MAX 512u /* bytes of DEVICE with its final NUL */
#define HARP_PORT_TEXT_MAX 8192u  /* of a whole text with its NUL; any text fits */

struct harp_port_route {
	struct harp_addr prefix, gateway;
	uint32_t prefix_len; /* bits of the address's own family */
};
struct harp_port_spec {
	char device[HARP_PORT_DEVICE_MAX];
	char name[16];
	uint32_t mtu_bytes;   /* 0: the device's own */
	uint32_t vlan_id;     /* 0: untagged */
	uint32_t queues;      /* at least 1 */
	uint32_t frame_count; /* per queue; 0: the opener's default */
	bool take_default_route;
	uint8_t reserved[3];
	uint32_t address_count, route_count;
	struct harp_addr addresses[HARP_PORT_ADDRESSES_MAX];
	uint32_t prefix_lens[HARP_PORT_ADDRESSES_MAX]; /* bits of the address's own family */
	struct harp_port_route routes[HARP_PORT_ROUTES_MAX];
	struct harp_addr gateway_v4, gateway_v6; /* all zero: none */
};
/* text: without HARP_PORT_PREFIX. 0, or -EINVAL with one line in why that names the port, the key,
 * its value and the permitted values. */
HARP_API int harp_port_spec_parse(const char *text, struct harp_port_spec *out, char *why,
				  size_t why_len);
/* Writes a text with the same meaning, and returns its length; -ENOSPC: buf (size bytes, with the
 * NUL) is too small. */
HARP_API int harp_port_spec_format(const struct harp_port_spec *spec, char *buf, size_t size);

/* ------------------------------------------------------------------------------------------------
 * Instances.
 */
struct harp_instance;

enum harp_xdp_mode {
	HARP_XDP_AUTO = 0, /* native if it costs the kernel nothing, else generic */
	HARP_XDP_GENERIC = 1,
	HARP_XDP_NATIVE = 2,
	HARP_XDP_NATIVE_OR_NONE = 3, /* as auto, but an error instead of generic */
};

struct harp_instance_options {
	uint32_t size; /* sizeof(struct harp_instance_options) */
	const char *ifname;
	uint32_t queue;
	uint32_t xdp_mode;           /* enum harp_xdp_mode */
	uint32_t copy_mode;          /* as harp_af_xdp_options */
	uint32_t huge_pages;         /* as harp_af_xdp_options */
	uint32_t frame_count;        /* 0: 8192 */
	uint32_t max_conns;          /* 0: 1024 */
	uint16_t port_min, port_max; /* 0: 61000, 65535 */
	uint64_t seed;               /* harp_stack_options.seed; 0 except in tests */
	/* directory of libharp-xdp.so; NULL: this library's, then the loader's search path */
	const char *lib_dir;
	void *ctx; /* argument of both hooks */
	harp_log_fn log;
	void (*requests)(void *ctx, uint64_t now_ns);
	const char *daemon_socket;  /* of the harpd that leases the instance; NULL: stand-alone */
	const char *label;          /* display label of the lease; at most 63 bytes. NULL: none */
	const struct harp_rss *rss; /* from harp_rss_parse(); NULL: query the NIC */
	/* For DPDK ports (ifname "dpdk:..."). */
	/* number of queues with which the first instance opens or leases the port; 0: from its
	 * text */
	uint32_t dpdk_queues;
	uint32_t dpdk_memory_mib; /* of DPDK's environment, once per process; 0: 256 */
	const char *dpdk_args;    /* more EAL arguments, separated by spaces; NULL: none */
};

/*
 * Opens everything. On failure nothing is left attached, bound or mapped, and why (one line) names
 * interface, queue, cause and remedy. -EPERM missing privilege, -ENODEV no such interface, -EBUSY
 * queue or XDP hook in use, -ENOTSUP not supported by kernel or driver, -ENOENT libharp-xdp.so
 * cannot be loaded, -ENETDOWN, -ENOMEM, -ECANCELED HARP_XDP_NATIVE_OR_NONE, and only generic mode
 * is possible.
 *
 * With daemon_socket, harpd leases the instance, which needs neither privileges nor libharp-xdp.so.
 * harpd may deviate from ifname, queue (HARP_LEASE_QUEUE_ANY: any), copy_mode and frame_count.
 * xdp_mode, huge_pages, port_min, port_max and lib_dir are not used: the lease determines the
 * ports. Further errors: -ECONNREFUSED or -ENOENT no daemon, -ETIMEDOUT no answer, -EPROTO an
 * invalid answer, or the errno of its refusal (-EACCES, -EDQUOT, -EBUSY ...). The lease ends with
 * harp_instance_close() or with the process.
 *
 * ifname "dpdk:TEXT" (harp_port_spec_parse(); with daemon_socket "dpdk:NAME", whose text harpd
 * sends) is a queue of a DPDK port, which belongs to the process: the first instance opens it, the
 * last one closes it. The stack has the port's addresses and routes and an IPv6 link-local address,
 * and answers ARP, neighbor discovery and ping. xdp_mode and copy_mode are not used. lib_dir:
 * directory of libharp-dpdk.so; frame_count: if the text has none; huge_pages: of DPDK. DPDK's
 * threads may call log, too, with DPDK's messages. A link that is down is not an error: see
 * harp_instance_control(). Further errors: -EINVAL the text, -ENOENT libharp-dpdk.so or DPDK is
 * missing, -ENOTSUP another version of DPDK, -EALREADY DPDK runs in this process with other
 * settings.
 */
HARP_API int harp_instance_open(struct harp_instance **out, const struct harp_instance_options *opt,
				char *why, size_t why_len);
HARP_API struct harp_stack *harp_instance_stack(struct harp_instance *instance);
HARP_API struct harp_nic *harp_instance_nic(struct harp_instance *instance);
/* Readable when packets are pending (poll together with control_fd when idle). -1: not available;
 * poll the stack periodically (most DPDK devices). */
HARP_API int harp_instance_fd(const struct harp_instance *instance);
/* Readable when addresses, routes, neighbors or the link changed (DPDK port: never for the
 * link). */
HARP_API int harp_instance_control_fd(const struct harp_instance *instance);
/* Processes those changes, and lets a thread of the instance query the kernel for the stack. Called
 * by the poller several times a second, and when control_fd is readable. Cheap without changes, and
 * never waits for the kernel. -ENODEV the interface was removed, -ENETDOWN it is down, -ENOLINK it
 * is up but packets do not reach the stack: the XDP program was removed and could not be attached
 * again. */
HARP_API int harp_instance_control(struct harp_instance *instance, uint64_t now_ns);
/* True if harp_instance_control() should be called soon. */
HARP_API bool harp_instance_control_pending(const struct harp_instance *instance);
/* Description, such as "AF_XDP generic copy on veth0 queue 0, MTU 1500, 8192 frames of 2048". */
HARP_API const char *harp_instance_describe(const struct harp_instance *instance);
/* Data path of an instance's packets. Copy: the kernel copies each packet between its memory and
 * the instance's. */
enum harp_instance_mode {
	HARP_MODE_NONE = 0,         /* no instance */
	HARP_MODE_GENERIC_COPY = 1, /* AF_XDP after a generic XDP program */
	HARP_MODE_NATIVE_COPY = 2,  /* AF_XDP after a native one */
	HARP_MODE_ZERO_COPY = 3,    /* AF_XDP without copies, by the driver */
	HARP_MODE_DPDK = 4,
};
#define HARP_MODE_COUNT 5u
HARP_API enum harp_instance_mode harp_instance_mode(const struct harp_instance *instance);
/* Counters of the XDP program since it was attached, one per verdict. Copies at most max, returns
 * their total number, or -errno (-ENOTSUP: the instance is leased, and harpd has the counters). */
HARP_API int harp_instance_steering(const struct harp_instance *instance, uint64_t *counts,
				    unsigned max);
/* The verdict's name ("redirect_tcp") and help; NULL after the last. */
HARP_API const char *harp_steering_name(unsigned index);
HARP_API const char *harp_steering_help(unsigned index);
/* In a forked child: closes this instance's descriptors and nothing else. Async-signal-safe. */
HARP_API void harp_instance_fork_child(struct harp_instance *instance);
HARP_API void harp_instance_close(struct harp_instance *instance);
/* harpd's lease data, valid for the instance's lifetime; NULL: stand-alone. */
HARP_API const struct harp_lease_leased *harp_instance_lease(const struct harp_instance *instance);
/* Properties of an instance's DPDK port. -ENOTSUP: it has none. */
struct harp_instance_port {
	char device[64]; /* DPDK's name */
	char driver[32]; /* "net_memif" */
	char pci[32];    /* PCI address; empty: none */
	char dpdk[32];   /* "DPDK 22.11.11" */
	uint8_t mac[6];
	uint8_t up; /* link, as of the last harp_instance_control() */
	uint8_t huge_pages;
	int32_t numa_node;              /* -1: none */
	uint32_t mtu_bytes, speed_mbps; /* speed 0: not known */
	uint32_t queues;
	uint32_t driver_copies; /* 1: the driver copies packets (memif, tap ...) */
	uint32_t address_count; /* without the stack's link-local address */
	struct harp_addr addresses[HARP_PORT_ADDRESSES_MAX];
};
HARP_API int harp_instance_dpdk(const struct harp_instance *instance,
				struct harp_instance_port *out);
/* harp_host_route() for the instance's NIC, which may be in another network namespace. The
 * source is zero if the kernel chose an address of another interface. Any thread. For a lease in
 * another network namespace this asks harpd, which takes a millisecond. If harpd does not answer
 * within two seconds, returns the last answer for the same destination, if any. */
HARP_API int harp_instance_route(struct harp_instance *instance, const struct harp_addr *dst,
				 struct harp_host_route *out);

/* ------------------------------------------------------------------------------------------------
 * harpd, from a job's side (protocol: harp_lease.h). No call takes longer than a few
 * seconds, whatever harpd does.
 */
struct harp_daemon;

/* Connects to harpd. client: name for its log ("harp 0.1.0 plugin", at most 31 bytes). -ENOENT,
 * -ECONNREFUSED no daemon, -EACCES the socket's permissions, -ETIMEDOUT, -EPERM the listener's user
 * is neither root nor this one, -EPROTO invalid answer; why (one line) names the socket, the cause
 * and the remedy. */
HARP_API int harp_daemon_connect(struct harp_daemon **out, const char *socket, const char *client,
				 char *why, size_t why_len);
/* The NICs whose queues harpd leases; in the daemon's memory. */
HARP_API const struct harp_lease_device *harp_daemon_devices(const struct harp_daemon *daemon,
							     unsigned *count);
/* harp.toml's settings for jobs: lines of NAME=VALUE; never NULL. In the daemon's memory. */
HARP_API const char *harp_daemon_settings(const struct harp_daemon *daemon);
/* Name of the daemon, such as "harpd 0.1.0". */
HARP_API const char *harp_daemon_name(const struct harp_daemon *daemon);
/* NULL is accepted. Leases remain, because they belong to the process. */
HARP_API void harp_daemon_close(struct harp_daemon *daemon);

/* ------------------------------------------------------------------------------------------------
 * Which receive queue a NIC chooses for a packet: receive side scaling.
 */

/* Queries the interface (ethtool ioctl; no privilege needed). HARP_RSS_UNKNOWN if the answer is
 * missing or insufficient to compute queues. 0; -ENODEV no such interface, other -errno. */
HARP_API int harp_rss_read(const char *ifname, struct harp_rss *out);
/* Parses an operator's setting for an interface with this number of queues: "unknown", or
 * "toeplitz:KEY[:TABLE]", KEY 40 to 64 bytes in hexadecimal, TABLE queue numbers separated by
 * commas (default: 128 entries, round robin). With one queue always HARP_RSS_NONE. 0, -EINVAL. */
HARP_API int harp_rss_parse(const char *text, uint32_t queues, struct harp_rss *out);
/* The queue on which the NIC receives a TCP packet from src to dst, both of one family. -ENOTSUP:
 * not known; -EINVAL: different families. */
HARP_API int harp_rss_queue(const struct harp_rss *rss, const struct harp_endpoint *src,
			    const struct harp_endpoint *dst);
/* RSS of the instance's NIC, as of its opening; valid until the instance is closed. */
HARP_API const struct harp_rss *harp_instance_rss(const struct harp_instance *instance);
/* The instance's receive queue. */
HARP_API uint32_t harp_instance_queue(const struct harp_instance *instance);

/* ------------------------------------------------------------------------------------------------
 * Queries about the host by rtnetlink; no privilege needed.
 */
/* The kernel's route to dst. -ENETUNREACH; other -errno. */
HARP_API int harp_host_route(const struct harp_addr *dst, struct harp_host_route *out);
/* The kernel's state of an interface's own address; larger values are preferred. */
enum harp_address_state {
	HARP_ADDRESS_DUPLICATE = 0, /* another host has it (RFC 4862 section 5.4): unusable */
	HARP_ADDRESS_TENTATIVE = 1, /* uniqueness not verified yet: unusable for a second or two */
	HARP_ADDRESS_DEPRECATED = 2,
	HARP_ADDRESS_TEMPORARY = 3, /* RFC 8981: changes daily */
	HARP_ADDRESS_PREFERRED = 4,
};
/* The state of an address; -ENODEV, -EADDRNOTAVAIL the interface does not have it, other -errno. */
HARP_API int harp_host_address_state(const char *ifname, const struct harp_addr *addr);
/* 1 if the default route (either family) uses this interface, 0 if not, -errno. */
HARP_API int harp_host_has_default_route(const char *ifname);

/* ------------------------------------------------------------------------------------------------
 * Checks whether HARP would work: one finding per line, for harpctl check and to explain errors.
 */
struct harp_check_item {
	char name[32];    /* "driver", "xdp-mode", "privilege", "queue" ... */
	int severity;     /* 0 good, 1 costs performance, 2 HARP cannot use it */
	char text[256];   /* what the check found */
	char remedy[256]; /* what to do; empty: nothing */
};
/* Fills at most max items, returns their total number. Attaches and changes nothing. */
HARP_API int harp_host_check(const char *ifname, uint32_t queue, struct harp_check_item *items,
			     unsigned max);

#ifdef __cplusplus
}
#endif

#endif
