/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tcp_states.c - RFC 9293 figure 5 and section 3.10 as a table: each event in each state, with
 * the reply and the next state. After each event the application closes, and rig_close() checks
 * that nothing is left.
 *
 * A cell is "reply state [error]".
 *
 * 	reply	- none, S SYN, SA SYN-ACK, A ACK, F FIN, R RST, RA RST with ACK
 * 	state	see names[]; = unchanged, 0 CLOSED
 * 	error	of the call, or the reason for CLOSED
 */
#include "rig.h"

static struct rig rig;

enum {
	LISTEN,
	SYN_SENT,
	SYN_RCVD,
	ESTAB,
	FIN_1,
	FIN_2,
	CLOSE_W,
	CLOSING,
	LAST_ACK,
	TIME_W,
	STATES
};
static const char *const names[STATES] = {
	"L", "SS", "SR", "E", "F1", "F2", "CW", "C", "LA", "TW"
};

/* ---- States, entered by acting as the peer --------------------------------------------------- */

static void peer_fin(void)
{
	rig_sends(&rig, TCP_ACK | TCP_FIN, 0);
	rig_poll(&rig);
	rig.out_head = rig.out_tail;
}

static void enter(unsigned state)
{
	rig_open(&rig);
	if (state == LISTEN || state == SYN_RCVD) {
		rig_listen(&rig, 4);
		if (state == LISTEN)
			return;
		rig_syn_received(&rig);
		return;
	}
	if (state == SYN_SENT) {
		rig_syn_sent(&rig, NULL);
		return;
	}
	rig_established(&rig, NULL);
	if (state == CLOSE_W || state == LAST_ACK)
		peer_fin();
	if (state >= FIN_1 && state != CLOSE_W)
		rig_app_shuts(&rig);
	if (state == FIN_2 || state == TIME_W)
		rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	if (state == CLOSING) {
		rig.ack--; /* the peer has not received the FIN */
		peer_fin();
		rig.ack++;
	}
	if (state == TIME_W)
		peer_fin();
	rig.out_head = rig.out_tail;
	rig_events(&rig);
}

/* The state of the only connection. */
static const char *state_now(void)
{
	static const uint8_t states[HARP_TCP_CLOSED + 1] = {
		[HARP_TCP_SYN_SENT] = SYN_SENT, [HARP_TCP_SYN_RECEIVED] = SYN_RCVD,
		[HARP_TCP_ESTABLISHED] = ESTAB, [HARP_TCP_FIN_WAIT_1] = FIN_1,
		[HARP_TCP_FIN_WAIT_2] = FIN_2,  [HARP_TCP_CLOSE_WAIT] = CLOSE_W,
		[HARP_TCP_CLOSING] = CLOSING,   [HARP_TCP_LAST_ACK] = LAST_ACK,
		[HARP_TCP_TIME_WAIT] = TIME_W,
	};
	const struct tcp *tcp = &rig.stack->tcp;

	for (uint32_t i = 0; i < tcp->conns_high; i++) {
		if (tcp->conns[i].state != HARP_TCP_CLOSED)
			return names[states[tcp->conns[i].state]];
	}
	return rig.listener ? "L" : "0";
}

/* ---- Events ---------------------------------------------------------------------------------- */

/* A segment of the peer, relative to its SND.NXT and to an ACK of everything. */
struct segment {
	uint8_t flags;
	uint32_t seq_off, ack_off, len;
};

static void arrive(struct segment segment)
{
	struct rig_say say = rig_usual(&rig, segment.flags, segment.len);

	say.seq += segment.seq_off;
	say.ack += segment.ack_off;
	rig_says(&rig, say);
	if (segment.len > 0) /* the ACK of a message's end is sent in the next poll */
		rig_poll(&rig);
}

static int ev_syn(void)
{
	struct rig_say say = rig_syn(&rig, TCP_SYN);

	say.seq += 1000; /* another SYN than the connection's, with an equal timestamp */
	rig_says(&rig, say);
	return 0;
}
static int ev_syn_newer(void)
{
	rig.tsval += 10;
	return ev_syn();
}
static int ev_syn_ack(void)
{
	struct rig_say say = rig_syn(&rig, TCP_SYN | TCP_ACK);

	if (rig.seq != RIG_PEER_ISS)
		say.seq = RIG_PEER_ISS; /* the SYN-ACK is repeated */
	rig_says(&rig, say);
	return 0;
}
static int ev_fin_alone(void) /* does not acknowledge our FIN, if any */
{
	bool has_fin = rig.conn && (rig.conn->flags & CONN_FIN_QUEUED);

	arrive((struct segment){ TCP_ACK | TCP_FIN, 0, -(uint32_t)has_fin, 0 });
	return 0;
}
static int ev_send(void)
{
	return rig.conn ? (int)rig_write(&rig, 10) : -EBADF;
}
static int ev_recv(void)
{
	uint8_t buf[10];

	return rig.conn ? (int)harp_conn_recv(rig.conn, buf, sizeof(buf)) : -EBADF;
}
static int ev_shutdown(void)
{
	int err = rig.conn ? harp_conn_shutdown(rig.conn, SHUT_WR) : -EBADF;

	rig_poll(&rig);
	return err;
}
/* Sends nothing and changes no state. */
static int ev_shutdown_read(void)
{
	int err = rig.conn ? harp_conn_shutdown(rig.conn, SHUT_RD) : -EBADF;

	rig_poll(&rig);
	return err;
}
static int ev_close(void)
{
	if (rig.conn)
		harp_conn_close(rig.conn);
	else
		harp_listener_close(rig.listener);
	rig.conn = NULL;
	rig.listener = NULL;
	rig_poll(&rig);
	return 0;
}
static int ev_abort(void)
{
	if (!rig.conn)
		return ev_close();
	harp_conn_abort(rig.conn);
	rig.conn = NULL;
	rig_poll(&rig);
	return 0;
}
/* The peer is silent and the application does nothing: only timers act. */
static int ev_silence(void)
{
	rig_wait(&rig, 150 * RIG_S);
	/* keeps the last segment: the number of retransmissions varies */
	while (rig_pending(&rig) > 1)
		rig.out_head++;
	return 0;
}
static int ev_close_silence(void)
{
	ev_close();
	return ev_silence();
}

static const struct {
	const char *name;
	int (*run)(void); /* NULL: this segment arrives */
	struct segment segment;
	const char *cell[STATES];
} rows[] = {
	/* LISTEN, SYN-SENT, SYN-RECEIVED, ESTABLISHED, FIN-WAIT-1, FIN-WAIT-2, CLOSE-WAIT, CLOSING,
	 * LAST-ACK, TIME-WAIT */
	/* clang-format off */
	/* in the window, no newer than the last timestamp: RFC 5961 section 4 */
	{ "syn", ev_syn, { 0 }, { "SA SR", "SA SR", "A =", "A =", "A =", "A =", "A =", "A =", "A =", "A =" } },
	/* TIME-WAIT would accept it if there were a listener: RFC 6191 */
	{ "syn_newer", ev_syn_newer, { 0 }, { "SA SR", "SA SR", "A =", "A =", "A =", "A =", "A =", "A =", "A =", "A =" } },
	/* the SYN-ACK that opened the connection */
	{ "syn_ack", ev_syn_ack, { 0 }, { "R =", "A E", "A =", "A =", "A =", "A =", "A =", "A =", "A =", "A =" } },
	/* acknowledges everything */
	{ "ack", NULL, { TCP_ACK, 0, 0, 0 }, { "R =", "- =", "- E", "- =", "- F2", "- =", "- =", "- TW", "- 0", "- =" } },
	/* RFC 5961 section 5 */
	{ "ack_unsent", NULL, { TCP_ACK, 0, 1000, 0 }, { "R =", "R =", "R =", "A =", "A =", "A =", "A =", "A =", "A =", "A =" } },
	/* neither ACK nor SYN nor RST */
	{ "no_ack", NULL, { TCP_PSH, 0, 0, 10 }, { "- =", "- =", "- =", "- =", "- =", "- =", "- =", "- =", "- =", "- =" } },
	/* acknowledges everything */
	{ "fin", NULL, { TCP_ACK | TCP_FIN, 0, 0, 0 }, { "R =", "- =", "A CW", "A CW", "A TW", "A TW", "- =", "- TW", "- 0", "- =" } },
	/* does not acknowledge our FIN */
	{ "fin_alone", ev_fin_alone, { 0 }, { "R =", "- =", "A CW", "A CW", "A C", "A TW", "- =", "- =", "- =", "- =" } },
	/* one before RCV.NXT: the peer has not received our ACK of it */
	{ "fin_again", NULL, { TCP_ACK | TCP_FIN, -1u, 0, 0 }, { "R =", "- =", "A =", "A =", "A =", "A =", "A =", "A =", "A =", "A =" } },
	/* at exactly RCV.NXT; RFC 1337 in TIME-WAIT */
	{ "rst", NULL, { TCP_RST | TCP_ACK, 0, 0, 0 }, { "- =", "- 0 ECONNREFUSED", "- L", "- 0 ECONNRESET", "- 0 ECONNRESET", "- 0 ECONNRESET", "- 0 ECONNRESET", "- 0", "- 0", "- =" } },
	/* in the window: RFC 5961 section 3 */
	{ "rst_near", NULL, { TCP_RST, 1, 0, 0 }, { "- =", "- =", "A =", "A =", "A =", "A =", "A =", "A =", "A =", "A =" } },
	/* outside */
	{ "rst_far", NULL, { TCP_RST, 1u << 30, 0, 0 }, { "- =", "- =", "- =", "- =", "- =", "- =", "- =", "- =", "- =", "- =" } },
	/* in order; beyond the FIN from CLOSE-WAIT on */
	{ "data", NULL, { TCP_ACK | TCP_PSH, 0, 0, 100 }, { "R =", "- =", "A E", "A =", "A F2", "A =", "- =", "- TW", "- 0", "- =" } },
	/* received before */
	{ "data_old", NULL, { TCP_ACK | TCP_PSH, -100u, 0, 100 }, { "R =", "- =", "A =", "A =", "A =", "A =", "A =", "A =", "A =", "A =" } },
	/* outside the window */
	{ "data_far", NULL, { TCP_ACK | TCP_PSH, 1u << 30, 0, 100 }, { "R =", "- =", "A =", "A =", "A =", "A =", "A =", "A =", "A =", "A =" } },
	/* 10 bytes */
	{ "send", ev_send, { 0 }, { "- = EBADF", "- = ENOTCONN", "- = EBADF", "A =", "- = EPIPE", "- = EPIPE", "A =", "- = EPIPE", "- = EPIPE", "- = EPIPE" } },
	{ "recv", ev_recv, { 0 }, { "- = EBADF", "- = EAGAIN", "- = EBADF", "- = EAGAIN", "- = EAGAIN", "- = EAGAIN", "- =", "- =", "- =", "- =" } },
	{ "shutdown", ev_shutdown, { 0 }, { "- = EBADF", "- =", "- = EBADF", "F F1", "- =", "- =", "F LA", "- =", "- =", "- =" } },
	{ "shutdown_read", ev_shutdown_read, { 0 }, { "- = EBADF", "- =", "- = EBADF", "- =", "- =", "- =", "- =", "- =", "- =", "- =" } },
	{ "close", ev_close, { 0 }, { "- 0", "- 0", "RA 0", "F F1", "- =", "- =", "F LA", "- =", "- =", "- =" } },
	{ "abort", ev_abort, { 0 }, { "- 0", "- 0", "RA 0", "RA 0", "RA 0", "RA 0", "RA 0", "RA 0", "RA 0", "- 0" } },
	/* peer and application are silent for 150 s */
	{ "silence", ev_silence, { 0 }, { "- =", "S 0 ETIMEDOUT", "SA L", "- =", "RA 0 ETIMEDOUT", "- =", "- =", "RA 0 ETIMEDOUT", "RA 0 ETIMEDOUT", "- 0" } },
	/* the application has closed */
	{ "close_silence", ev_close_silence, { 0 }, { "- 0", "- 0", "RA 0", "RA 0", "RA 0", "- 0", "RA 0", "RA 0", "RA 0", "- 0" } },
	/* clang-format on */
};

/* ---- A cell ---------------------------------------------------------------------------------- */

static const char *reply_name(uint8_t flags)
{
	switch (flags & (TCP_SYN | TCP_ACK | TCP_FIN | TCP_RST)) {
	case TCP_SYN:
		return "S";
	case TCP_SYN | TCP_ACK:
		return "SA";
	case TCP_ACK:
		return "A";
	case TCP_FIN | TCP_ACK:
		return "F";
	case TCP_RST:
		return "R";
	case TCP_RST | TCP_ACK:
		return "RA";
	default:
		return "?";
	}
}

static void check_cell(unsigned row, unsigned state)
{
	char got[64], previous[4];
	const char *now, *reply = "-";
	int result = 0;

	enter(state);
	snprintf(previous, sizeof(previous), "%s", state_now());
	CHECK_STR(previous, names[state]);
	if (rows[row].run)
		result = rows[row].run();
	else
		arrive(rows[row].segment);
	if (rig_pending(&rig) > 0)
		reply = reply_name(rig.out[rig.out_head % RIG_QUEUE].flags);
	CHECK(rig_pending(&rig) <= 1);
	now = state_now();
	if (strcmp(now, previous) == 0)
		now = "=";
	if (result == 0 && rig.conn)
		result = harp_conn_error(rig.conn);
	snprintf(got, sizeof(got), result < 0 ? "%s %s %s" : "%s %s", reply, now,
		 result < 0 ? strerrorname_np(-result) : "");
	if (strcmp(got, rows[row].cell[state]) != 0) {
		fprintf(stderr, "%s in %s: \"%s\", not \"%s\"\n", rows[row].name, names[state], got,
			rows[row].cell[state]);
		check_failed();
	}
	rig_close(&rig);
}

int main(void)
{
	for (unsigned row = 0; row < ARRAY_SIZE(rows); row++) {
		for (unsigned state = 0; state < STATES; state++)
			check_cell(row, state);
	}
	return check_done();
}
