/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_abi.c - the shims of abi.c over a stand-in plugin.c: every version through its own table,
 * every result, every output written, every argument handed on.
 */
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "double.h"
#include "versions.h"

extern const struct nccl_net_v6 ncclNetPlugin_v6;
extern const struct nccl_net_v7 ncclNetPlugin_v7;
extern const struct nccl_net_v8 ncclNetPlugin_v8;
extern const struct nccl_net_v9 ncclNetPlugin_v9;
extern const struct nccl_net_v10 ncclNetPlugin_v10;
extern const struct nccl_net_v11 ncclNetPlugin_v11;
extern const struct nccl_net_v12 ncclNetPlugin_v12;

static const void *const tables[] = {
	[6] = &ncclNetPlugin_v6,   [7] = &ncclNetPlugin_v7,   [8] = &ncclNetPlugin_v8,
	[9] = &ncclNetPlugin_v9,   [10] = &ncclNetPlugin_v10, [11] = &ncclNetPlugin_v11,
	[12] = &ncclNetPlugin_v12,
};

static unsigned failures, warnings;
static char last_line[1024];

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: v%d: %s\n", __FILE__, __LINE__, net->version,      \
				#condition);                                                       \
			failures++;                                                                \
		}                                                                                  \
	} while (0)

#define GARBAGE ((void *)(uintptr_t)0xabad1dea)

__attribute__((format(printf, 5, 6))) static void logger(enum nccl_log_level level,
							 unsigned long flags, const char *func,
							 int line, const char *fmt, ...)
{
	va_list args;

	(void)func;
	(void)line;
	warnings += level == NCCL_LOG_WARN;
	if (flags != (NCCL_LOG_INIT | NCCL_LOG_NET))
		failures++;
	va_start(args, fmt);
	vsnprintf(last_line, sizeof(last_line), fmt, args);
	va_end(args);
}

static void script(struct double_script s)
{
	double_script = s;
}

static void test_init(struct net *net)
{
	struct net early = *net;
	void *comm = GARBAGE;
	char handle[NCCL_HANDLE_BYTES];
	int count;

	memset(&double_seen, 0, sizeof(double_seen));
	early.ctx = NULL;
	/* Version 6 is first, so that there is no implicit context yet, and none can be opened. */
	if (net->version == 6)
		script((struct double_script){ .rc = -ENODEV });
	if (net->version == 6 || net->version > 10) {
		CHECK(net_listen(&early, 0, handle, &comm) == NCCL_INTERNAL_ERROR && !comm);
		comm = GARBAGE;
		CHECK(net_connect(&early, 0, handle, &comm) == NCCL_INTERNAL_ERROR && !comm);
		CHECK(double_seen.inits == (net->version == 6 ? 2 : 0));
	}
	if (net->version == 6) {
		CHECK(net_init(net, logger) == NCCL_INVALID_ARGUMENT);
		CHECK(double_seen.inits == 3);
		script((struct double_script){ 0 });
		/* NCCL 2.22 and 2.23 call no init after they have loaded the library again. */
		CHECK(net_devices(net, &count) == NCCL_SUCCESS && double_seen.inits == 4);
		CHECK(double_seen.init_traffic_class == -1);
		CHECK(net_init(net, logger) == NCCL_SUCCESS && double_seen.inits == 4);
	} else if (net->version <= 10) {
		/* One implicit context for all versions without one. */
		CHECK(net_init(net, logger) == NCCL_SUCCESS && double_seen.inits == 0);
	} else {
		script((struct double_script){ .rc = -ENOMEM });
		CHECK(net_init(net, logger) == NCCL_SYSTEM_ERROR && !net->ctx);
		CHECK(net_finalize(net) == NCCL_SUCCESS && double_seen.finalizes == 0);
		script((struct double_script){ 0 });
		net->traffic_class = 104;
		CHECK(net_init(net, logger) == NCCL_SUCCESS && net->ctx);
		CHECK(double_seen.init_traffic_class == 104 && double_seen.comm_id == 0x1234);
	}
	CHECK(!strcmp(net_name(net), "HARP"));
}

static void test_results(struct net *net)
{
	static const struct {
		int error;
		enum nccl_result result;
	} map[] = {
		{ 0, NCCL_SUCCESS },
		{ ECONNRESET, NCCL_REMOTE_ERROR },
		{ EPIPE, NCCL_REMOTE_ERROR },
		{ ECONNREFUSED, NCCL_REMOTE_ERROR },
		{ ETIMEDOUT, NCCL_REMOTE_ERROR },
		{ EHOSTUNREACH, NCCL_REMOTE_ERROR },
		{ ENETUNREACH, NCCL_REMOTE_ERROR },
		{ EPROTO, NCCL_REMOTE_ERROR },
		{ ECONNABORTED, NCCL_REMOTE_ERROR },
		{ EMSGSIZE, NCCL_INVALID_USAGE },
		{ EPROTONOSUPPORT, NCCL_INVALID_USAGE },
		{ EINVAL, NCCL_INVALID_ARGUMENT },
		{ ENODEV, NCCL_INVALID_ARGUMENT },
		{ EOPNOTSUPP, NCCL_INVALID_ARGUMENT },
		{ EBADF, NCCL_INTERNAL_ERROR },
		{ EFAULT, NCCL_INTERNAL_ERROR },
		{ ENOMEM, NCCL_SYSTEM_ERROR },
		{ EMFILE, NCCL_SYSTEM_ERROR },
		{ 4095, NCCL_SYSTEM_ERROR },
	};
	char handle[NCCL_HANDLE_BYTES], byte;
	void *comm = &byte;

	for (size_t i = 0; i < sizeof(map) / sizeof(map[0]); i++) {
		bool good = map[i].error == 0;
		void *out = GARBAGE;
		int done = 77;

		script((struct double_script){ .rc = -map[i].error, .done = 1 });
		CHECK(net_listen(net, 0, handle, &out) == map[i].result && good == (out != NULL));
		if (good)
			net_close_listen(net, out);
		out = GARBAGE;
		CHECK(net_connect(net, 0, handle, &out) == map[i].result && good == (out != NULL));
		if (good)
			net_close_send(net, out);
		out = GARBAGE;
		CHECK(net_accept(net, comm, &out) == map[i].result && good == (out != NULL));
		if (good)
			net_close_recv(net, out);
		out = GARBAGE;
		CHECK(net_isend(net, comm, &byte, 1, 0, NULL, &out) == map[i].result);
		CHECK(good == (out != NULL));
		out = NCCL_REQUEST_OPTIONAL;
		CHECK(net_irecv(net, comm, &byte, 1, 0, NULL, &out) == map[i].result);
		CHECK(good == (out != NULL) && out != NCCL_REQUEST_OPTIONAL);
		CHECK(net_test(net, comm, &done, NULL) == map[i].result && done == good);
		/* Closing never fails. */
		CHECK(net_close_send(net, comm) == NCCL_SUCCESS);
		CHECK(net_close_recv(net, comm) == NCCL_SUCCESS);
		CHECK(net_close_listen(net, comm) == NCCL_SUCCESS);
	}
	CHECK(double_seen.close_listens > 0 && double_seen.closes > 0);
}

static void test_pending(struct net *net)
{
	char handle[NCCL_HANDLE_BYTES], byte;
	void *out = GARBAGE;

	script((struct double_script){ .pending = true });
	CHECK(net_connect(net, 0, handle, &out) == NCCL_SUCCESS && !out);
	out = GARBAGE;
	CHECK(net_accept(net, &byte, &out) == NCCL_SUCCESS && !out);
	out = GARBAGE;
	CHECK(net_isend(net, &byte, &byte, 1, 0, NULL, &out) == NCCL_SUCCESS && !out);
	out = NCCL_REQUEST_OPTIONAL;
	CHECK(net_irecv(net, &byte, &byte, 1, 0, NULL, &out) == NCCL_SUCCESS && !out);
}

static void test_arguments(struct net *net)
{
	char handle[NCCL_HANDLE_BYTES], byte;
	void *out;
	int sizes = -5, done;

	script((struct double_script){ 0 });
	net->traffic_class = net->version == 10 ? 46 : net->traffic_class;
	CHECK(net_connect(net, 3, handle, &out) == NCCL_SUCCESS);
	CHECK(double_seen.dev == 3 && double_seen.handle == handle && double_seen.ctx);
	CHECK(double_seen.connect_traffic_class == (net->version == 10 ? 46 : -1));
	CHECK(net->version < 11 || double_seen.ctx == net->ctx);
	CHECK(net_isend(net, &byte, handle, 77, -9, &sizes, &out) == NCCL_SUCCESS);
	CHECK(double_seen.data == handle && double_seen.size == 77 && double_seen.tag == -9);
	CHECK(double_seen.memory == &sizes);
	CHECK(net_irecv(net, &byte, &byte, 78, 12, &done, &out) == NCCL_SUCCESS);
	CHECK(double_seen.data == &byte && double_seen.size == 78 && double_seen.tag == 12);
	CHECK(double_seen.memory == &done);
	CHECK(net_isend(net, &byte, NULL, 0, 0, NULL, &out) == NCCL_SUCCESS);
	CHECK(net_irecv(net, &byte, NULL, 0, 0, NULL, &out) == NCCL_SUCCESS);
	if (net->version >= 9) {
		CHECK(net_isend(net, &byte, handle, 5ull << 32, 0, NULL, &out) == NCCL_SUCCESS);
		CHECK(double_seen.size == 5ull << 32);
		CHECK(net_irecv(net, &byte, handle, 6ull << 32, 0, NULL, &out) == NCCL_SUCCESS);
		CHECK(double_seen.size == 6ull << 32);
	}
	script((struct double_script){ .done = 0, .size = 5 });
	CHECK(net_test(net, out, &done, &sizes) == NCCL_SUCCESS && done == 0 && sizes == -5);
	script((struct double_script){ .done = 1, .size = 0 });
	CHECK(net_test(net, out, &done, &sizes) == NCCL_SUCCESS && done == 1 && sizes == 0);
	CHECK(net_test(net, out, &done, NULL) == NCCL_SUCCESS && done == 1);
	script((struct double_script){ .done = 1, .size = 3ull << 30 });
	CHECK(net_test(net, out, &done, &sizes) == NCCL_SUCCESS && sizes == INT_MAX);
}

/* Each is refused with one line, and with its outputs written. conform's null_arguments has the NULL arguments. */
static void test_misuse(struct net *net)
{
	void *out, *mhandle = NULL;
	unsigned before;
	int tag = 0;
	char byte;

#define REFUSED(call)                                                                              \
	do {                                                                                       \
		out = GARBAGE;                                                                     \
		before = warnings;                                                                 \
		CHECK((call) == NCCL_INVALID_ARGUMENT && !out);                                    \
		CHECK(warnings == before + 1 && strstr(last_line, "NET/HARP: "));                  \
	} while (0)

	script((struct double_script){ 0 });
	memset(&double_seen, 0, sizeof(double_seen));
	for (int n = -1; n <= 8; n++) {
		void *many[8] = { &byte, &byte, &byte, &byte, &byte, &byte, &byte, &byte };
		size_t lens[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };

		if (n != 1)
			REFUSED(net_irecv_list(net, &byte, n, many, lens, &tag, &mhandle, &out));
	}
	if (net->version <= 8) {
		REFUSED(net_isend(net, &byte, &byte, (size_t)-1, 0, NULL, &out));
		REFUSED(net_irecv(net, &byte, &byte, (size_t)INT_MIN, 0, NULL, &out));
	}
	if (net->version <= 7)
		REFUSED(net_reg_mr(net, &byte, &byte, (size_t)-1, NCCL_PTR_HOST, &out));
	REFUSED(net_reg_mr(net, &byte, &byte, 1, NCCL_PTR_CUDA, &out));
	REFUSED(net_reg_mr(net, &byte, &byte, 1, NCCL_PTR_DMABUF, &out));
	REFUSED(net_reg_mr(net, &byte, &byte, 1, 0, &out));
	/* None of it got any further. */
	CHECK(!double_seen.data && !double_seen.handle);
}

static void test_optional_members(void)
{
	const struct net *net = &(struct net){ .version = 12 };

	CHECK(!ncclNetPlugin_v6.reg_mr_dmabuf && !ncclNetPlugin_v12.reg_mr_dmabuf);
	CHECK(!ncclNetPlugin_v7.get_device_mr && !ncclNetPlugin_v7.irecv_consumed);
	CHECK(!ncclNetPlugin_v8.get_device_mr && !ncclNetPlugin_v8.irecv_consumed);
	CHECK(!ncclNetPlugin_v9.make_vdevice && !ncclNetPlugin_v9.irecv_consumed);
	CHECK(!ncclNetPlugin_v10.make_vdevice && !ncclNetPlugin_v10.irecv_consumed);
	CHECK(!ncclNetPlugin_v11.make_vdevice && !ncclNetPlugin_v11.irecv_consumed);
	CHECK(!ncclNetPlugin_v12.make_vdevice && !ncclNetPlugin_v12.irecv_consumed);
	CHECK(ncclNetPlugin_v11.set_net_attr(NULL, NULL) == NCCL_SUCCESS);
	CHECK(ncclNetPlugin_v12.set_net_attr(NULL, NULL) == NCCL_SUCCESS);
}

static void test_net_attr(void)
{
	struct nccl_net_attr attr = {
		.send = { .max_concurrent_peers = 2 },
		.recv = { .max_concurrent_peers = 3 },
		.op = 1u << 4,
		.algo = 1u << 1,
		.proto = 1u << 2,
	};
	struct plugin_ctx *ctx = (struct plugin_ctx *)&attr;
	const struct net *net = &(struct net){ .version = 12 };

	CHECK(ncclNetPlugin_v12.set_net_attr(ctx, &attr) == NCCL_SUCCESS);
	CHECK(double_seen.ctx == ctx);
	CHECK(double_seen.attr.operations == 1u << 4 && double_seen.attr.algorithms == 1u << 1);
	CHECK(double_seen.attr.protocols == 1u << 2);
	CHECK(double_seen.attr.send_peers == 2 && double_seen.attr.receive_peers == 3);
	CHECK(ncclNetPlugin_v11.set_net_attr(ctx, NULL) == NCCL_SUCCESS);
}

int main(void)
{
	for (int version = NCCL_ABI_OLDEST; version <= NCCL_ABI_NEWEST; version++) {
		struct net net = {
			.version = version,
			.table = tables[version],
			.traffic_class = NCCL_TRAFFIC_CLASS_UNSET,
		};

		test_init(&net);
		test_results(&net);
		test_pending(&net);
		test_arguments(&net);
		test_misuse(&net);
		script((struct double_script){ .rc = version == 12 ? -EIO : 0 });
		if (net_finalize(&net) != NCCL_SUCCESS)
			failures++;
	}
	test_optional_members();
	test_net_attr();
	return failures != 0;
}
