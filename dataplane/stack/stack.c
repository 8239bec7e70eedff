/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stack.c - order of a poll: receive, timers, the application's requests, transmit, refill,
 * publish.
 *
 * Only this file knows the order. On reception each layer returns a verdict, and this code calls
 * the next layer. For output, each layer calls the layer below.
 */
#include "stack/stack.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

#define STACK_CONNS_MAX 1048576u
/* polls of one burst each, so that a flood of packets cannot delay timers forever */
#define STACK_TIMER_DELAYS_MAX 32u
#define STACK_TX_RETRY_NS 20000u /* for a NIC that holds packets and has no next_ns() */

/* ------------------------------------------------------------------------------------------------
 * Creation.
 */
static int stack_option_invalid(const struct harp_stack_options *opt, const char *error)
{
	if (opt->hooks.log)
		opt->hooks.log(opt->hooks.ctx, HARP_LOG_ERROR, error);
	return -EINVAL;
}

static int stack_options(const struct harp_stack_options *in, struct harp_stack_options *opt)
{
	*opt = (struct harp_stack_options){ 0 };
	if (in) {
		if (in->size != sizeof(*opt))
			return -EINVAL;
		*opt = *in;
	}
	if (opt->max_conns == 0)
		opt->max_conns = 1024;
	if (opt->max_listeners == 0)
		opt->max_listeners = 64;
	if (opt->max_neighbors == 0)
		opt->max_neighbors = 256;
	if (opt->port_min == 0)
		opt->port_min = 61000;
	if (opt->port_max == 0)
		opt->port_max = 65535;
	if (opt->max_conns > STACK_CONNS_MAX)
		return stack_option_invalid(opt, "harp_stack_create: max_conns is above 1048576");
	if (opt->max_listeners > 65536)
		return stack_option_invalid(opt, "harp_stack_create: max_listeners is above 65536");
	if (opt->max_neighbors > 65536)
		return stack_option_invalid(opt, "harp_stack_create: max_neighbors is above 65536");
	if (opt->port_min > opt->port_max)
		return stack_option_invalid(opt, "harp_stack_create: port_min is above port_max");
	if (opt->vlan_id > ETH_VLAN_ID_MAX)
		return stack_option_invalid(opt, "harp_stack_create: vlan_id is above 4094");
	if (opt->neighbor_mode > HARP_NEIGHBOR_EXTERNAL)
		return stack_option_invalid(opt,
					    "harp_stack_create: neighbor_mode is neither OWN nor "
					    "EXTERNAL");
	return 0;
}

int harp_stack_create(struct harp_stack **out, struct harp_nic *nic,
		      const struct harp_stack_options *opt)
{
	struct harp_stack_options options;
	struct harp_nic_caps caps;
	struct harp_stack *stack;
	int err = stack_options(opt, &options);

	if (err)
		return err;
	stack = aligned_alloc(64, (sizeof(*stack) + 63) & ~(size_t)63);
	if (!stack)
		return -ENOMEM;
	memset(stack, 0, sizeof(*stack));
	stack->options = options;
	stack->now_ns = options.now_ns;
	if (options.seed)
		rng_seed(&stack->rng, options.seed);
	else
		rng_seed_system(&stack->rng);
	wheel_init(&stack->wheel, options.now_ns);
	caps = nicio_caps(nic);
	err = frame_pool_init(&stack->pool, &caps);
	if (!err)
		err = nicio_init(&stack->io, nic, &stack->pool, &stack->stats);
	stack->io.now_ns = options.now_ns;
	if (!err)
		err = eth_init(&stack->eth, &stack->io, &stack->wheel, &stack->rng, &stack->stats,
			       &stack->options);
	if (err)
		goto fail;
	ip_init(&stack->ip, &stack->eth, &stack->stats, &stack->options);
	icmp_init(&stack->icmp, &stack->ip, &stack->stats);
	err = tcp_init(&stack->tcp, &stack->ip, &stack->wheel, &stack->rng, &stack->stats,
		       &stack->options, &stack->options.hooks);
	if (!err)
		err = udp_init(&stack->udp, &stack->icmp, &stack->wheel, &stack->rng, &stack->stats,
			       &stack->options);
	if (!err)
		err = stack->rng.error; /* all keys have been drawn by now */
	if (err)
		goto fail;
	nicio_fill(&stack->io);
	*out = stack;
	return 0;
fail:
	harp_stack_destroy(stack);
	return err;
}

void harp_stack_destroy(struct harp_stack *stack)
{
	if (!stack)
		return;
	publish_end(stack);
	eth_destroy(&stack->eth); /* first: its timers share lists with those of connections */
	udp_destroy(&stack->udp);
	tcp_destroy(&stack->tcp);
	if (stack->io.capture)
		capture_destroy(stack->io.capture);
	frame_pool_destroy(&stack->pool);
	free(stack);
}

/* ------------------------------------------------------------------------------------------------
 * One poll.
 */
/* Processes an ICMP error, or forwards it to the stack of this NIC that sent the quoted packet. */
static void stack_icmp_input(struct harp_stack *stack, const struct harp_icmp_error *error)
{
	const struct harp_stack_options *opt = &stack->options;
	const struct port_table *ports =
		error->proto == IP_PROTO_TCP ? &stack->tcp.ports : &stack->udp.ports;

	if (!opt->icmp_error_forward || !port_on_other_queue(ports, error->local.port))
		harp_stack_icmp_error(stack, error);
	else if (icmp_forward_allowed(&stack->icmp))
		opt->icmp_error_forward(opt->hooks.ctx, error);
}

static enum ip_verdict stack_ip(struct harp_stack *stack, struct packet_in *in)
{
	switch (eth_input(&stack->eth, in->frame)) {
	case ETH_IPV4:
		return ip_input(&stack->ip, in);
	case ETH_IPV6_GROUP:
		in->group = true;
		/* fall through */
	case ETH_IPV6:
		return ip6_input(&stack->ip, in);
	default:
		return IP_DROPPED;
	}
}

/* Passes one packet through the layers. more: it is not the last of the burst, so it may start a
 * GRO batch. */
static void stack_input(struct harp_stack *stack, struct frame *packet, bool more)
{
	struct tcp_gro *gro = &stack->gro;
	struct packet_in *in = &gro->in;
	struct harp_icmp_error error;
	bool kept = false;

	gro->conn = NULL;
	gro->head = more ? packet->pub.data : NULL;
	gro->bytes = packet->pub.len;
	*in = (struct packet_in){ .frame = packet };
	switch (stack_ip(stack, in)) {
	case IP_LOCAL_TCP:
		kept = tcp_input(&stack->tcp, gro) == TCP_KEPT;
		break;
	case IP_LOCAL_ICMP:
		if (icmp_input(&stack->icmp, in, &error) == ICMP_ERROR)
			stack_icmp_input(stack, &error);
		break;
	case IP_LOCAL_ICMP6:
		if (icmp6_input(&stack->icmp, in, &error) == ICMP_ERROR)
			stack_icmp_input(stack, &error);
		break;
	case IP_LOCAL_UDP:
		kept = udp_input(&stack->udp, in) == UDP_KEPT;
		break;
	default:
		break;
	}
	if (!kept)
		frame_release_packet(&stack->pool, packet);
}

static void stack_timer(void *ctx, struct timer *timer, uint64_t now_ns)
{
	struct harp_stack *stack = ctx;

	if (timer->kind == TCP_TIMER_KIND)
		tcp_timer_fire(container_of(timer, struct harp_conn, timer));
	else if (timer->kind == UDP_TIMER_KIND)
		udp_timer_fire(container_of(timer, struct harp_udp, timer));
	else
		neighbor_timer(&stack->eth, timer);
	(void)now_ns; /* stack->now_ns */
}

/* If UDP did not complete its last phase because the NIC was full, it is first, so that TCP does
 * not starve it. */
static void stack_tx_phase(struct harp_stack *stack)
{
	if (stack->udp.nic_full) {
		udp_tx_phase(&stack->udp);
		tcp_tx_phase(&stack->tcp);
	} else {
		tcp_tx_phase(&stack->tcp);
		udp_tx_phase(&stack->udp);
	}
}

int harp_stack_poll(struct harp_stack *stack, uint64_t now_ns)
{
	struct frame *packets[NICIO_BURST];
	unsigned received, fired = 0;
	uint64_t sent_before = stack->stats.tx_packets, before_ns = stack->now_ns;

	if (now_ns < stack->now_ns)
		now_ns = stack->now_ns;
	stack->now_ns = now_ns;
	stack->io.now_ns = now_ns;
	stack->stats.polls++;
	stack->tcp.poll_count++;
	tcp_clock(&stack->tcp, now_ns);
	stack->udp.now_ns = now_ns;

	nicio_complete(&stack->io);
	received = nicio_rx(&stack->io, packets);
	stack->gro.conn = NULL;
	for (unsigned i = 0; i < received; i++)
		if (!stack->gro.conn || !tcp_gro_in(&stack->gro, packets[i]))
			stack_input(stack, packets[i], i + 1 < received);
	/* If the ring had more than one burst, the ACKs for which timers wait may still be in it.
	 * After a pause of the thread, that must not be taken for loss. */
	if (received < NICIO_BURST || ++stack->timer_delays == STACK_TIMER_DELAYS_MAX) {
		fired = wheel_advance(&stack->wheel, now_ns, stack_timer, stack);
		stack->timer_delays = 0;
	}
	if (stack->options.hooks.requests)
		stack->options.hooks.requests(stack->options.hooks.ctx, now_ns);
	stack_tx_phase(stack);
	nicio_flush(&stack->io);
	if (received > 0 || stack->io.fill_held < stack->io.fill_target)
		nicio_fill(&stack->io);
	if (stack->publish.page)
		publish_poll(stack, now_ns - before_ns);
	return (int)(received + fired + (unsigned)(stack->stats.tx_packets - sent_before));
}

/*
 * Deadline while the NIC holds packets. The NIC may need another kick, and its completions release
 * frames and space for which a transmit phase, a retransmission or an allocation waits. The owner
 * queries a NIC with next_ns(); others are polled at growing intervals while nothing completes.
 * This also covers packets sent between polls, such as the RST of an aborted connection.
 */
static uint64_t stack_nic_next_ns(const struct harp_stack *stack)
{
	const struct nicio *io = &stack->io;
	uint64_t idle_ns = stack->now_ns - io->tx_moved_ns;

	if (io->tx_count > io->tx_refused)
		return stack->now_ns;
	if (io->nic->ops->next_ns ||
	    !(stack->tcp.nic_full || stack->udp.nic_full || io->tx_held > 0))
		return UINT64_MAX;
	return stack->now_ns + (idle_ns > STACK_TX_RETRY_NS ? idle_ns : STACK_TX_RETRY_NS);
}

uint64_t harp_stack_next_deadline_ns(const struct harp_stack *stack)
{
	uint64_t deadline_ns = wheel_next_ns(&stack->wheel), nic_ns, page_ns;
	uint64_t tcp_ns = tcp_tx_next_ns(&stack->tcp), udp_ns = udp_tx_next_ns(&stack->udp);

	if (tcp_ns < deadline_ns)
		deadline_ns = tcp_ns;
	if (udp_ns < deadline_ns)
		deadline_ns = udp_ns;
	nic_ns = stack_nic_next_ns(stack);
	if (nic_ns < deadline_ns)
		deadline_ns = nic_ns;
	page_ns = publish_next_ns(stack);
	return page_ns < deadline_ns ? page_ns : deadline_ns;
}

uint64_t harp_stack_now_ns(const struct harp_stack *stack)
{
	return stack->now_ns;
}
