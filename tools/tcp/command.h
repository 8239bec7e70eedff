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
	bool verify;     /* sink: verify every byte */
	bool half_close; /* recv: shut down the sending direction after the request */
	uint64_t bytes;  /* send, recv */
	uint32_t count;  /* serve, sink: connections; message: messages per connection, or 0 */
	uint32_t size;   /* message: bytes per message */
	uint32_t repeat; /* send, recv: connections, one after the other */
	uint32_t flows;  /* message: concurrent connections */
	uint32_t depth;  /* message: maximum messages in flight per connection */
	uint64_t timeout_ns;
	uint64_t run_ns, skip_ns; /* message: duration, and its first part that is not measured */
};

/* Parses the command line. On bad usage, prints an error and exits with status 2. */
void command_parse(int argc, char **argv, struct options *o);

#endif
