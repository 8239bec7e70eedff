/* SPDX-License-Identifier: Apache-2.0 */
/* api.c - functions of harp.h that take a stack; each forwards to its layer. */
#include "stack/stack.h"

#include <errno.h>

int harp_stack_address_add(struct harp_stack *stack, const struct harp_addr *addr,
			   unsigned prefix_len)
{
	return ip_address_add(&stack->ip, addr, prefix_len);
}

int harp_stack_address_remove(struct harp_stack *stack, const struct harp_addr *addr)
{
	return ip_address_remove(&stack->ip, addr);
}

int harp_stack_route_add(struct harp_stack *stack, const struct harp_addr *prefix,
			 unsigned prefix_len, const struct harp_addr *gateway, uint32_t mtu_bytes)
{
	return ip_route_add(&stack->ip, prefix, prefix_len, gateway, mtu_bytes);
}

int harp_stack_route_remove(struct harp_stack *stack, const struct harp_addr *prefix,
			    unsigned prefix_len)
{
	return ip_route_remove(&stack->ip, prefix, prefix_len);
}

int harp_stack_route(const struct harp_stack *stack, const struct harp_addr *dst,
		     struct harp_addr *next_hop, struct harp_addr *source)
{
	struct ip_path path = { .dst = *dst };
	int err = ip_path_route(&stack->ip, &path);

	*next_hop = path.next_hop;
	*source = path.src;
	return err;
}

int harp_stack_neighbor_set(struct harp_stack *stack, const struct harp_addr *addr,
			    const uint8_t *mac)
{
	return neighbor_set(&stack->eth, addr, mac);
}

bool harp_stack_memory_supported(const struct harp_stack *stack)
{
	return stack->pool.external_count > 0;
}

int harp_stack_memory_add(struct harp_stack *stack, const void *base, size_t bytes)
{
	return nicio_memory_add(&stack->io, base, bytes);
}

int harp_stack_memory_remove(struct harp_stack *stack, const void *base, size_t bytes)
{
	return nicio_memory_remove(&stack->io, base, bytes);
}

void harp_stack_neighbor_learned(struct harp_stack *stack, const struct harp_addr *addr,
				 const uint8_t *mac, uint32_t flags)
{
	if (stack->eth.neighbor_mode == HARP_NEIGHBOR_OWN && (!mac || !(mac[0] & 1)))
		neighbor_learn_forwarded(&stack->eth, addr, mac, flags);
}

void harp_stack_icmp_error(struct harp_stack *stack, const struct harp_icmp_error *error)
{
	struct flow_key key;
	int kind;

	if (error->proto == IP_PROTO_UDP) {
		udp_icmp_error(&stack->udp, error);
		return;
	}
	key = (struct flow_key){ .local = error->local.addr,
				 .remote = error->remote.addr,
				 .local_port = error->local.port,
				 .remote_port = error->remote.port };
	switch (error->kind) {
	case ICMP_ERROR_TOO_BIG:
		kind = -EMSGSIZE;
		break;
	case ICMP_ERROR_UNREACHABLE_PORT:
		kind = -ECONNREFUSED;
		break;
	case ICMP_ERROR_PROHIBITED:
		kind = -EHOSTUNREACH;
		break;
	default:
		return; /* soft error: RFC 1122 section 4.2.3.9, timers continue */
	}
	tcp_icmp_error(&stack->tcp, &key, error->seq, kind, error->mtu_bytes);
}

ssize_t harp_stack_memory_evict(struct harp_stack *stack, const void *base, size_t bytes)
{
	ssize_t copied = external_evict(&stack->tcp, base, bytes);

	if (copied >= 0)
		nicio_memory_forget(&stack->io, base, bytes);
	return copied;
}

int harp_tcp_listen(struct harp_stack *stack, const struct harp_endpoint *local,
		    const struct harp_tcp_options *opt, struct harp_listener **out)
{
	return listener_open(&stack->tcp, local, opt, out);
}

int harp_tcp_connect(struct harp_stack *stack, const struct harp_endpoint *local,
		     const struct harp_endpoint *remote, const struct harp_tcp_options *opt,
		     struct harp_conn **out)
{
	return conn_connect(&stack->tcp, local, remote, opt, out);
}

struct harp_conn *harp_stack_next_event(struct harp_stack *stack, uint32_t *events)
{
	return conn_next_event(&stack->tcp, events);
}

int harp_udp_open(struct harp_stack *stack, const struct harp_endpoint *local,
		  const struct harp_udp_options *opt, struct harp_udp **out)
{
	return udp_open(&stack->udp, local, opt, out);
}

int harp_stack_capture_start(struct harp_stack *stack, size_t ring_bytes, uint32_t snap_len)
{
	if (stack->io.capture)
		return -EALREADY;
	return capture_create(&stack->io.capture, ring_bytes, snap_len);
}

int harp_stack_capture_write(const struct harp_stack *stack, int fd, int64_t wall_offset_ns)
{
	if (!stack->io.capture)
		return -ENOENT;
	return capture_write(stack->io.capture, fd, stack->io.nic->caps.name, wall_offset_ns);
}

void harp_stack_capture_stop(struct harp_stack *stack)
{
	capture_destroy(stack->io.capture);
	stack->io.capture = NULL;
}
