/* SPDX-License-Identifier: Apache-2.0 */
/* command.h - harp-tcp's command line. */
#ifndef HARP_TOOLS_TCP_COMMAND_H
#define HARP_TOOLS_TCP_COMMAND_H

#include "stream.h"

#define MESSAGE_MAX (16u << 20)
#define MESSAGE_DEPTH_MAX 1024u

enum command { COMMAND_SEND, COMMAND_RECV, COMMAND_MESSAGE, COMMAND_SERVE, COMMAND_SINK };
struct options {
	struct stream_options stream;
	enum command command;
	bool json;
	bool verify;     /* sink: every byte */
	bool half_close; /* recv: nothing is sent after the request */
	uint64_t bytes;  /* send, recv */
	uint32_t count;  /* serve, sink: connections; message: of each, or 0 */
	uint32_t size;   /* message: bytes of one */
	uint32_t repeat; /* send, recv: connections, one after the other */
	uint32_t flows;  /* message: connections at once */
	uint32_t depth;  /* message: unanswered ones on a connection */
	uint64_t timeout_ns;
	uint64_t run_ns, skip_ns; /* message: for how long; the beginning that is not counted */
};

/* Fills it, or prints what is wrong and exits with status 2. */
void command_parse(int argc, char **argv, struct options *o);

#endif
