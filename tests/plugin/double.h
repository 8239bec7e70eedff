/* SPDX-License-Identifier: Apache-2.0 */
/*
 * double.h - stands in for plugin.c: returns what the test says, and remembers what it was asked.
 */
#ifndef HARP_TESTS_PLUGIN_DOUBLE_H
#define HARP_TESTS_PLUGIN_DOUBLE_H

#include "context/plugin.h"

struct double_script {
	int rc;       /* of every call */
	bool pending; /* connect, accept, isend, irecv: 0 with *out NULL */
	int done;     /* of test */
	size_t size;  /* of test */
};
extern struct double_script double_script;

/* The arguments of the last call of each kind, and how many there were. */
struct double_seen {
	unsigned inits, finalizes, closes, close_listens;
	uint64_t comm_id;
	int init_traffic_class, connect_traffic_class;
	struct plugin_ctx *ctx;
	struct plugin_net_attr attr;
	int dev, tag;
	const void *data, *memory;
	size_t size;
	void *handle;
};
extern struct double_seen double_seen;

#endif
