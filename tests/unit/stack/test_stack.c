/* SPDX-License-Identifier: Apache-2.0 */
/* test_stack.c - a stack's API: options, ports, addresses, routes, captures, counters. */
#include <fcntl.h>
#include <unistd.h>

#include "rig.h"

static struct rig the_rig, *const rig = &the_rig;
BEFORE_EACH(rig_open(rig))
AFTER_EACH(rig_close(rig))

static char log_text[128];

static void store_log(void *ctx, enum harp_log_level level, const char *message)
{
	CHECK_EQ(level, HARP_LOG_ERROR);
	snprintf(log_text, sizeof(log_text), "%s", message);
}

static void check_refused(struct harp_stack_options options, const char *text)
{
	struct harp_nic_callbacks nic = { .size = sizeof(nic),
					  .mac = { 2, 0, 0, 0, 0, 1 },
					  .receive = rig_receive,
					  .send = rig_send };
	struct harp_stack *stack = NULL;
	struct harp_nic *card;

	options.size = sizeof(options);
	options.hooks.log = store_log;
	log_text[0] = '\0';
	CHECK_EQ(harp_nic_callback_create(&card, &nic), 0);
	CHECK_EQ(harp_stack_create(&stack, card, &options), -EINVAL);
	CHECK(!stack);
	CHECK_STR(log_text, text);
	harp_nic_destroy(card);
}

TEST(errors_name_the_invalid_option)
{
	check_refused((struct harp_stack_options){ .max_conns = (1u << 20) + 1 },
		      "harp_stack_create: max_conns is above 1048576");
	check_refused((struct harp_stack_options){ .max_listeners = 65537 },
		      "harp_stack_create: max_listeners is above 65536");
	check_refused((struct harp_stack_options){ .max_neighbors = 65537 },
		      "harp_stack_create: max_neighbors is above 65536");
	check_refused((struct harp_stack_options){ .port_min = 2000, .port_max = 1999 },
		      "harp_stack_create: port_min is above port_max");
	check_refused((struct harp_stack_options){ .vlan_id = 4095 },
		      "harp_stack_create: vlan_id is above 4094");
	check_refused((struct harp_stack_options){ .neighbor_mode = 2 },
		      "harp_stack_create: neighbor_mode is neither OWN nor EXTERNAL");
}

TEST(a_port_has_one_listener)
{
	struct harp_endpoint any = { .port = RIG_PORT }, free_endpoint = { 0 }, local = any;
	struct harp_listener *second = NULL, *free_port;

	local.addr = harp_addr_v4(10, 0, 0, 1);
	rig_listen(rig, 0);
	CHECK_EQ(harp_tcp_listen(rig->stack, &any, NULL, &second), -EADDRINUSE);
	CHECK_EQ(harp_tcp_listen(rig->stack, &local, NULL, &second), -EADDRINUSE);
	harp_listener_close(rig->listener);
	CHECK_EQ(harp_tcp_listen(rig->stack, &local, NULL, &rig->listener), 0);
	CHECK_EQ(harp_tcp_listen(rig->stack, &local, NULL, &second), -EADDRINUSE);
	/* With port 0, the stack chooses a free port. */
	CHECK_EQ(harp_tcp_listen(rig->stack, &free_endpoint, NULL, &free_port), 0);
	harp_listener_endpoint(free_port, &free_endpoint);
	CHECK(free_endpoint.port > RIG_PORT);
	harp_listener_close(free_port);
}

static int set_keepalive(uint64_t idle_ns, uint64_t interval_ns, uint32_t count)
{
	struct harp_tcp_options opt = rig_options(rig);

	opt.keepalive_idle_ns = idle_ns;
	opt.keepalive_interval_ns = interval_ns;
	opt.keepalive_count = count;
	return harp_conn_set_options(rig->conn, &opt);
}

/* A write ends at the last full segment below the limit, so that no segment is short although more
 * bytes follow. */
TEST(the_unsent_limit_is_whole_segments)
{
	uint8_t bytes[20000] = { 0 };
	struct iovec iov[] = { { bytes, 1000 }, { bytes, sizeof(bytes) } };

	rig_established(rig, RIG_OPTIONS(.unsent_bytes_max = 5000));
	CHECK_EQ(harp_conn_send(rig->conn, &iov[0], 1), 1000);
	CHECK_EQ(harp_conn_send_space(rig->conn), 4000);
	CHECK_EQ(harp_conn_send(rig->conn, &iov[1], 1), 3 * 1448 - 1000);
	CHECK_EQ(harp_conn_send(rig->conn, &iov[1], 1), -EAGAIN);
	rig_poll(rig);
	for (unsigned i = 0; i < 3; i++)
		CHECK_EQ(rig_expect(rig, TCP_ACK | (i == 2 ? TCP_PSH : 0))->len, 1448);
	rig_silent(rig);
	CHECK(rig_events(rig) & HARP_EVENT_WRITABLE);
	/* The same with two buffers; bytes that fit are all accepted. */
	CHECK_EQ(harp_conn_send(rig->conn, iov, 2), 3 * 1448);
	rig_poll(rig);
	rig->out_head = rig->out_tail;
	CHECK_EQ(harp_conn_send(rig->conn, &(struct iovec){ bytes, 5000 }, 1), 5000);
	rig_poll(rig);
	rig->out_head = rig->out_tail;
	/* A limit below one segment applies exactly. */
	rig->conn->opts.unsent_bytes_max = 700;
	CHECK_EQ(harp_conn_send(rig->conn, &iov[1], 1), 700);
}

/* The connection has been idle for longer than the new interval, so the probe is sent at once. */
TEST(keepalive_can_be_enabled_later)
{
	rig_established(rig, NULL);
	rig_wait(rig, 100 * RIG_S);
	rig_silent(rig);
	CHECK_EQ(set_keepalive(5 * RIG_S, RIG_S, 3), 0);
	rig_wait(rig, RIG_S / 2);
	CHECK_EQ(rig_expect(rig, TCP_ACK)->seq, rig->ack - 1);
	rig_says(rig, rig_usual(rig, TCP_ACK, 0)); /* the peer answers */
	CHECK_EQ(set_keepalive(0, 0, 0), 0);
	rig_wait(rig, 100 * RIG_S);
	rig_silent(rig);
	CHECK_EQ(rig->conn->state, HARP_TCP_ESTABLISHED);
	/* Without an answer: three probes at intervals of a second. */
	CHECK_EQ(set_keepalive(5 * RIG_S, RIG_S, 3), 0);
	rig_wait(rig, 4 * RIG_S);
	CHECK_EQ(harp_conn_error(rig->conn), -ETIMEDOUT);
	for (unsigned i = 0; i < 3; i++)
		CHECK_EQ(rig_expect(rig, TCP_ACK)->seq, rig->ack - 1);
	rig->out_head = rig->out_tail;
}

/* The local address is removed and added again. Bytes written meanwhile are sent afterwards
 * (RFC 1122 section 4.2.3.5). */
TEST(a_connection_survives_the_removal_of_its_address)
{
	struct harp_addr local = harp_addr_v4(10, 0, 0, 1);

	rig_established(rig, NULL);
	CHECK_EQ(harp_stack_address_remove(rig->stack, &local), 0);
	CHECK_EQ(harp_stack_address_remove(rig->stack, &local), -ENOENT);
	CHECK_EQ(rig_write(rig, 100), 100);
	rig_wait(rig, RIG_S);
	rig_silent(rig);
	CHECK_EQ(rig->conn->state, HARP_TCP_ESTABLISHED);
	CHECK_EQ(harp_stack_address_add(rig->stack, &local, 24), 0);
	rig_wait(rig, 3 * RIG_S);
	CHECK_EQ(rig_expect(rig, TCP_ACK | TCP_PSH)->len, 100);
	rig->out_head = rig->out_tail;
}

TEST(a_removed_route_is_not_used)
{
	struct harp_endpoint far = { .addr = harp_addr_v4(10, 9, 0, 1), .port = RIG_PEER_PORT };
	struct harp_addr prefix = harp_addr_v4(10, 9, 0, 0), peer = harp_addr_v4(10, 0, 0, 2);
	struct harp_conn *conn;

	CHECK_EQ(harp_tcp_connect(rig->stack, NULL, &far, NULL, &conn), -ENETUNREACH);
	CHECK_EQ(harp_stack_route_add(rig->stack, &prefix, 16, &peer, 0), 0);
	CHECK_EQ(harp_tcp_connect(rig->stack, NULL, &far, NULL, &rig->conn), 0);
	CHECK_EQ(harp_stack_route_remove(rig->stack, &prefix, 16), 0);
	CHECK_EQ(harp_stack_route_remove(rig->stack, &prefix, 16), -ENOENT);
	rig_poll(rig); /* the SYN has no route */
	rig_silent(rig);
	CHECK_EQ(rig->conn->state, HARP_TCP_SYN_SENT);
	CHECK_EQ(harp_tcp_connect(rig->stack, NULL, &far, NULL, &conn), -ENETUNREACH);
}

/* A capture records received and sent packets until it is stopped or the stack ends. */
TEST(a_capture_holds_both_directions)
{
	char path[] = "/tmp/harp-test-XXXXXX";
	int fd = mkstemp(path);
	off_t empty;

	CHECK(fd >= 0);
	unlink(path);
	CHECK_EQ(harp_stack_capture_write(rig->stack, fd, 0), -ENOENT);
	CHECK_EQ(harp_stack_capture_start(rig->stack, 1 << 16, 96), 0);
	CHECK_EQ(harp_stack_capture_start(rig->stack, 1 << 16, 96), -EALREADY);
	CHECK_EQ(harp_stack_capture_write(rig->stack, fd, 0), 0);
	empty = lseek(fd, 0, SEEK_END);
	rig_established(rig, NULL); /* three packets, each in a block with 32 bytes of overhead */
	CHECK_EQ(harp_stack_capture_write(rig->stack, fd, 0), 0);
	CHECK(lseek(fd, 0, SEEK_END) - 2 * empty >= 3 * (32 + 54));
	harp_stack_capture_stop(rig->stack);
	CHECK_EQ(harp_stack_capture_write(rig->stack, fd, 0), -ENOENT);
	CHECK_EQ(harp_stack_capture_start(rig->stack, 1 << 16, 96), 0);
	close(fd);
}

TEST(counters_and_states_have_names)
{
	unsigned count = harp_stats_count();
	uint64_t values[512], value;

	CHECK(count <= 512);
	rig_established(rig, NULL);
	CHECK_EQ(harp_stack_now_ns(rig->stack), rig->now_ns);
	CHECK_EQ(harp_stack_stats(rig->stack, values, 512), count);
	for (unsigned i = 0; i < count; i++) {
		CHECK(strlen(harp_stats_help(i)) > 0);
		CHECK_EQ(harp_stack_stat(rig->stack, harp_stats_name(i), &value), 0);
		CHECK_EQ(values[i], value);
	}
	CHECK_EQ(harp_stack_stats(rig->stack, values, 3), 3);
	CHECK(!harp_stats_name(count) && !harp_stats_help(count));
	CHECK_STR(harp_tcp_state_name(HARP_TCP_LISTEN), "LISTEN");
	CHECK_STR(harp_tcp_state_name(rig->conn->state), "ESTABLISHED");
	CHECK_STR(harp_tcp_state_name(HARP_TCP_CLOSED), "CLOSED");
	CHECK_STR(harp_tcp_state_name(HARP_TCP_CLOSED + 1), "?");
}

/* The stack's memory is large enough to be unmapped, so a late write to a timer faults. */
TEST(a_stack_with_pending_timers_is_destroyed)
{
	struct harp_nic_callbacks nic = { .size = sizeof(nic),
					  .mac = { 2, 0, 0, 0, 0, 1 },
					  .receive = rig_receive,
					  .send = rig_send };
	struct harp_stack_options options = { .size = sizeof(options), .max_conns = 4096 };
	struct harp_stack *stack;
	struct harp_nic *card;

	CHECK_EQ(harp_nic_callback_create(&card, &nic), 0);
	CHECK_EQ(harp_stack_create(&stack, card, &options), 0);
	for (uint64_t at_ns = 0; at_ns < 100 * RIG_S; at_ns += RIG_S) {
		wheel_set(&stack->wheel, &stack->eth.neighbors[0].timer, at_ns);
		wheel_set(&stack->wheel, &stack->tcp.conns[4095].timer, at_ns);
	}
	harp_stack_destroy(stack);
	harp_nic_destroy(card);
}
