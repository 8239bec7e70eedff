/* SPDX-License-Identifier: Apache-2.0 */
/* coll.c - the public functions: groups and requests. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "coll_impl.h"

#define API __attribute__((visibility("default")))
#define TIMEOUT_MS_DEFAULT 300000
#define CLOSE_NS (5 * COLL_NSEC_PER_SEC)

static const char forked_text[] =
	"this process was forked while a group was open and shares connections with its "
	"parent; open groups after fork(), or start workers with spawn or exec";

/* Writes a text and returns rc. */
static int coll_error(char *error, size_t error_bytes, int rc, const char *text)
{
	if (error && error_bytes)
		snprintf(error, error_bytes, "%s", text);
	return rc;
}

/* ---- groups ---------------------------------------------------------------------------------- */

static int group_check_options(const struct harp_coll_options *options, char *error, size_t bytes)
{
	const struct harp_coll_store *store = &options->store;

	if (options->size != sizeof(*options) || store->size != sizeof(*store))
		return coll_error(
			error, bytes, -EINVAL,
			"the caller was built for another version of libharp-coll; rebuild it");
	if (options->world < 1 || options->world > HARP_COLL_WORLD_MAX || options->rank < 0 ||
	    options->rank >= options->world) {
		snprintf(error, bytes,
			 "rank %d of world %d: use a world of 1 to %d ranks, numbered from 0",
			 options->rank, options->world, HARP_COLL_WORLD_MAX);
		return -EINVAL;
	}
	if (!options->name || !*options->name || strlen(options->name) >= COLL_NAME_BYTES)
		return coll_error(error, bytes, -EINVAL, "a group's name must have 1 to 64 bytes");
	for (const char *at = options->name; *at; at++)
		if (!isgraph((unsigned char)*at))
			return coll_error(
				error, bytes, -EINVAL,
				"a group's name must have printable characters and no spaces");
	if (options->world > 1 && (!store->set || !store->get || !store->wait))
		return coll_error(error, bytes, -EINVAL,
				  "no key-value store: set, get and wait are required");
	if (options->timeout_ms < 0)
		return coll_error(error, bytes, -EINVAL, "timeout_ms is negative");
	if (algo_check_settings()) {
		snprintf(error, bytes, "HARP_COLL_ALGO=%s: must be empty or ring",
			 algo_check_settings());
		return -EINVAL;
	}
	return 0;
}

/* The option, else HARP_COLL_WIRE, else native. -EINVAL. */
static int group_wire(const struct harp_coll_options *options, char *error, size_t bytes)
{
	const char *text = getenv("HARP_COLL_WIRE");
	int wire = (int)options->wire;

	if (wire == HARP_COLL_WIRE_DEFAULT)
		wire = text && *text ? call_wire_parse(text) : HARP_COLL_WIRE_NATIVE;
	else if ((unsigned)wire >= HARP_COLL_WIRES)
		return coll_error(error, bytes, -EINVAL, "options.wire is not a wire format");
	if (wire < 0)
		snprintf(error, bytes, "HARP_COLL_WIRE=%.32s: must be native, float16 or bfloat16",
			 text);
	return wire;
}

/* Derives the topology from the host texts of all ranks. */
static int group_topology(struct harp_coll *group)
{
	size_t world = (size_t)group->world;
	int *first_of, *size_of;

	group->host_of = calloc(world, sizeof(int));
	group->local_ranks = calloc(world, sizeof(int));
	group->grid = calloc(world, sizeof(int));
	first_of = calloc(world, sizeof(int));
	size_of = calloc(world, sizeof(int));
	if (!group->host_of || !group->local_ranks || !group->grid || !first_of || !size_of) {
		free(first_of);
		free(size_of);
		return -ENOMEM;
	}
	for (int r = 0; r < group->world; r++) {
		const char *host = group->peers[r].host;
		int h = 0;

		while (h < group->hosts_count &&
		       (!host[0] || strcmp(group->peers[first_of[h]].host, host)))
			h++;
		if (h == group->hosts_count)
			first_of[group->hosts_count++] = r;
		group->host_of[r] = h;
		size_of[h]++;
	}
	group->is_regular = !algo_is_flat();
	for (int h = 0; h < group->hosts_count; h++)
		if (size_of[h] != size_of[0])
			group->is_regular = false;
	for (int r = 0; r < group->world; r++) {
		if (group->host_of[r] != group->host_of[group->rank])
			continue;
		if (r == group->rank)
			group->local_index = group->local_count;
		group->local_ranks[group->local_count++] = r;
	}
	memset(size_of, 0, world * sizeof(int));
	for (int r = 0; r < group->world && group->is_regular; r++) {
		int h = group->host_of[r];

		group->grid[h * group->local_count + size_of[h]++] = r;
	}
	free(first_of);
	free(size_of);
	return 0;
}

static void group_free(struct harp_coll *group)
{
	if (group->links)
		for (int i = 0; i < LINK_CLASSES * group->world; i++)
			free(group->links[i]);
	shm_close_group(group);
	sched_scratch_free(group);
	free(group->links);
	free(group->busy);
	free(group->peers);
	free(group->host_of);
	free(group->local_ranks);
	free(group->grid);
	free(group->waits);
	free(group->messages);
	free(group);
}

/* The first group of the process loads the plugin; the last one unloads it. groups_count includes
 * the group during both, so that a child forked meanwhile is refused. */
static int process_enter(const struct harp_coll_options *options, char *error, size_t error_bytes)
{
	int rc = 0;

	pthread_mutex_lock(&runtime.process_lock); /* waits for process_leave() */
	runtime_lock();
	if (runtime.groups_count++ == 0) {
		runtime.log = options->log;
		runtime.log_arg = options->log_arg;
	}
	if (options->world > 1)
		rc = net_load(options->plugin, error, error_bytes);
	if (rc == 0) {
		rc = runtime_thread_start();
		if (rc)
			snprintf(error, error_bytes, "no background thread: %s", strerror(-rc));
	}
	if (rc && runtime.groups_count == 1)
		net_unload();
	if (rc)
		runtime.groups_count--;
	runtime_unlock();
	pthread_mutex_unlock(&runtime.process_lock);
	return rc;
}

static void process_leave(void)
{
	bool is_last;

	pthread_mutex_lock(&runtime.process_lock);
	runtime_lock();
	is_last = runtime.groups_count == 1;
	runtime_unlock();
	if (is_last)
		runtime_thread_stop(); /* without runtime.lock, which the thread needs to finish */
	runtime_lock();
	if (is_last) {
		link_accept_forget();
		op_forget_spare();
		net_unload();
	}
	runtime.groups_count--;
	runtime_unlock();
	pthread_mutex_unlock(&runtime.process_lock);
}

static int group_allocate(struct harp_coll **out, const struct harp_coll_options *options)
{
	size_t world = (size_t)options->world;
	struct harp_coll *group = calloc(1, sizeof(*group));

	*out = group;
	if (!group)
		return -ENOMEM;
	TAILQ_INIT(&group->queue);
	TAILQ_INIT(&group->sends);
	TAILQ_INIT(&group->recvs);
	group->rank = options->rank;
	group->world = options->world;
	snprintf(group->name, sizeof(group->name), "%s", options->name);
	group->store = options->store;
	group->timeout_ns = (options->timeout_ms ? options->timeout_ms : TIMEOUT_MS_DEFAULT) *
			    COLL_NSEC_PER_MSEC;
	group->device = options->device < 0 ? 0 : options->device;
	group->peers = calloc(world, sizeof(*group->peers));
	group->links = calloc(LINK_CLASSES * world, sizeof(struct link *));
	group->busy = calloc(LINK_CLASSES * world, sizeof(struct link *));
	return group->peers && group->links && group->busy ? 0 : -ENOMEM;
}

API int harp_coll_open(const struct harp_coll_options *options, struct harp_coll **out, char *error,
		       size_t error_bytes)
{
	struct harp_coll *group = NULL;
	char unused[HARP_COLL_ERROR_BYTES];
	int64_t deadline_ns;
	int rc, wire = HARP_COLL_WIRE_NATIVE;

	*out = NULL;
	if (!error || !error_bytes) {
		error = unused;
		error_bytes = sizeof(unused);
	}
	error[0] = '\0';
	if (atomic_load(&runtime.is_child))
		return coll_error(error, error_bytes, -EOWNERDEAD, forked_text);
	rc = group_check_options(options, error, error_bytes);
	if (rc == 0)
		rc = wire = group_wire(options, error, error_bytes);
	if (rc < 0)
		return rc;
	rc = process_enter(options, error, error_bytes);
	if (rc)
		return rc;
	rc = group_allocate(&group, options);
	if (rc)
		goto fail;
	group->wire = (enum harp_coll_wire)wire;
	deadline_ns = coll_now_ns() + group->timeout_ns;
	if (group->world > 1) {
		group->device %= net_devices();
		runtime_lock();
		rc = link_listener(group->device, group->peers[group->rank].handle);
		runtime_unlock();
		if (rc) {
			snprintf(
				error, error_bytes,
				"the plugin cannot listen on device %d: %s; its log has the reason",
				group->device, strerror(-rc));
			goto fail;
		}
	}
	rc = meet_open(group, options, deadline_ns, error, error_bytes);
	if (rc == 0)
		rc = group_topology(group);
	if (rc == 0)
		rc = shm_open_group(group, deadline_ns, error, error_bytes);
	if (rc)
		goto fail;
	runtime_lock();
	LIST_INSERT_HEAD(&runtime.groups, group, link);
	runtime_unlock();
	*out = group;
	return 0;
fail:
	if (rc == -ENOMEM && !error[0])
		snprintf(error, error_bytes, "no memory");
	if (group)
		group_free(group);
	process_leave();
	return rc;
}

/* Waits until messages of completed operations have been sent, because a peer may need them. */
static void group_drain(struct harp_coll *group)
{
	int64_t deadline_ns = coll_now_ns() + CLOSE_NS;

	for (;;) {
		bool is_sending = false;

		runtime_lock();
		if (group->state == GROUP_OPEN)
			for (int i = 0; i < group->busy_count && !is_sending; i++)
				is_sending = group->busy[i]->out.done < group->busy[i]->out.posted;
		runtime_unlock();
		if (!is_sending || coll_now_ns() > deadline_ns)
			return;
		if (!runtime_poll())
			nanosleep(&(struct timespec){ .tv_nsec = 20000 }, NULL);
	}
}

static void group_unlink(struct harp_coll *group)
{
	if (group->link.le_prev)
		LIST_REMOVE(group, link);
	if (group->is_active)
		LIST_REMOVE(group, active_link);
	atomic_store_explicit(&runtime.has_active, !LIST_EMPTY(&runtime.active),
			      memory_order_relaxed);
}

API void harp_coll_close(struct harp_coll *group)
{
	bool has_work;

	if (!group || atomic_load(&runtime.is_child))
		return;
	runtime_lock();
	has_work = !TAILQ_EMPTY(&group->queue) || message_is_waiting(group);
	if (has_work)
		group_fail(group, true, -ECANCELED,
			   "rank %d closed the group while operations were in progress",
			   group->rank);
	runtime_unlock();
	if (!has_work)
		group_drain(group);
	for (;;) { /* until no thread uses the store for this group */
		bool done;

		runtime_lock();
		done = !group->is_in_store && group->state != GROUP_FAILING;
		if (done) {
			if (group->state == GROUP_OPEN)
				group_close_links(group);
			message_forget(group);
			group_unlink(group);
		}
		runtime_unlock();
		if (done)
			break;
		nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
	}
	group_free(group);
	process_leave();
}

API void harp_coll_abort(struct harp_coll *group, const char *reason)
{
	if (!group || atomic_load(&runtime.is_child))
		return;
	runtime_lock();
	group_fail(group, true, -ECANCELED, "rank %d aborted the group%s%s", group->rank,
		   reason && *reason ? ": " : "", reason ? reason : "");
	runtime_unlock();
}

/* ---- requests -------------------------------------------------------------------------------- */

static int request_copy_arrays(struct harp_coll_request *op, const struct harp_coll_call *call)
{
	size_t world = (size_t)op->group->world, bytes = world * sizeof(void *);
	char *at;

	if (!call->in_counts && !call->out_counts && !call->in_blocks && !call->out_blocks)
		return 0;
	static_assert(sizeof(size_t) == sizeof(void *), "equal size of the four arrays");
	op->arrays = at = malloc(4 * bytes);
	if (!at)
		return -ENOMEM;
	if (call->in_counts)
		op->call.in_counts = memcpy(at, call->in_counts, bytes);
	if (call->out_counts)
		op->call.out_counts = memcpy(at + bytes, call->out_counts, bytes);
	if (call->in_blocks)
		op->call.in_blocks = memcpy(at + 2 * bytes, call->in_blocks, bytes);
	if (call->out_blocks)
		op->call.out_blocks = memcpy(at + 3 * bytes, call->out_blocks, bytes);
	return 0;
}

/* With one rank, the result is the input. */
static void request_copy_input(const struct harp_coll_request *op)
{
	size_t in_count, out_count;
	const void *in = algo_in_block(op, 0, &in_count);
	void *out = algo_out_block(op, 0, &out_count);
	size_t count = in_count < out_count ? in_count : out_count;

	if (op->call.op != HARP_COLL_BARRIER && in && out != in && count)
		memcpy(out, in, count * harp_coll_dtype_bytes(op->call.dtype));
}

/* On success, returns with the lock held and the operation queued or done. */
static int request_begin(struct harp_coll *group, const struct harp_coll_call *call,
			 struct harp_coll_request **out, char *error, size_t error_bytes)
{
	char unused[8];
	struct harp_coll_request *op;
	int rc;

	if (!error || !error_bytes) {
		error = unused;
		error_bytes = sizeof(unused);
	}
	error[0] = '\0';
	if (atomic_load(&runtime.is_child))
		return coll_error(error, error_bytes, -EOWNERDEAD, forked_text);
	rc = call_check(group, call, error, error_bytes);
	if (rc)
		return rc;
	runtime_lock();
	if (group->state != GROUP_OPEN) {
		rc = coll_error(error, error_bytes, group->error, group->error_text);
		runtime_unlock();
		return rc;
	}
	op = op_take();
	if (op) {
		op->group = group;
		op->call = *call;
		if (call->op == HARP_COLL_BARRIER)
			op->call = (struct harp_coll_call){ .size = sizeof(*call),
							    .op = HARP_COLL_BARRIER,
							    .timeout_ms = call->timeout_ms };
		if (call->op == HARP_COLL_BROADCAST && call->peer == group->rank && !call->in)
			op->call.in = call->out;
		op->call.wire = call_wire(group, &op->call);
	}
	if (!op || request_copy_arrays(op, call)) {
		if (op)
			op_put(op);
		runtime_unlock();
		return coll_error(error, error_bytes, -ENOMEM, "no memory");
	}
	op->source = -1;
	op->received = 0;
	call_fill(&op->header, group, &op->call);
	if (group->world == 1) {
		request_copy_input(op);
		op->state = OP_DONE;
		op->group = NULL;
		atomic_store_explicit(&op->result, 0, memory_order_relaxed);
		group->stats.operations++;
	} else {
		atomic_store_explicit(&op->result, 1, memory_order_relaxed);
		if (call->op == HARP_COLL_SEND || call->op == HARP_COLL_RECV) {
			rc = message_start(op);
		} else {
			op->header.algorithm = (uint8_t)algo_choose(group, &op->call);
			op->state = OP_QUEUED;
			TAILQ_INSERT_TAIL(&group->queue, op, link);
		}
		if (rc) {
			op_put(op);
			runtime_unlock();
			return coll_error(error, error_bytes, rc, strerror(-rc));
		}
		group_set_active(group);
	}
	*out = op;
	return 0;
}

API int harp_coll_start(struct harp_coll *group, const struct harp_coll_call *call,
			struct harp_coll_request **out, char *error, size_t error_bytes)
{
	int rc;

	*out = NULL;
	rc = request_begin(group, call, out, error, error_bytes);
	if (rc)
		return rc;
	if ((*out)->state != OP_DONE)
		group_progress(group, coll_now_ns());
	runtime_unlock();
	runtime_kick();
	return 0;
}

API int harp_coll_run(struct harp_coll *group, const struct harp_coll_call *call, char *error,
		      size_t error_bytes)
{
	struct harp_coll_request *op;
	int rc = request_begin(group, call, &op, error, error_bytes);

	if (rc)
		return rc;
	if (op->state == OP_DONE) {
		op_put(op);
		runtime_unlock();
		return 0;
	}
	group_progress(group, coll_now_ns());
	runtime_unlock();
	runtime_wait(&op->result, 0);
	rc = atomic_load_explicit(&op->result, memory_order_acquire);
	if (rc)
		coll_error(error, error_bytes, rc, op->error ? op->error : strerror(-rc));
	runtime_lock();
	op_put(op);
	runtime_unlock();
	return rc;
}

API int harp_coll_test(struct harp_coll_request *request)
{
	int rc = atomic_load_explicit(&request->result, memory_order_acquire);

	if (rc != 1)
		return rc;
	if (atomic_load(&runtime.is_child))
		return -EOWNERDEAD;
	runtime_poll();
	rc = atomic_load_explicit(&request->result, memory_order_acquire);
	return rc == 1 ? -EAGAIN : rc;
}

API int harp_coll_wait(struct harp_coll_request *request, int64_t timeout_ms)
{
	int rc;

	if (atomic_load(&runtime.is_child))
		return -EOWNERDEAD;
	runtime_wait(&request->result,
		     timeout_ms < 0 ? 0 : coll_now_ns() + timeout_ms * COLL_NSEC_PER_MSEC);
	rc = atomic_load_explicit(&request->result, memory_order_acquire);
	return rc == 1 ? -EAGAIN : rc;
}

API void harp_coll_notify(struct harp_coll_request *request, void (*fn)(void *arg), void *arg)
{
	bool is_done;

	runtime_lock();
	is_done = request->state == OP_DONE;
	if (!is_done) {
		request->notify = fn;
		request->notify_arg = arg;
	}
	runtime_unlock();
	if (is_done)
		fn(arg);
}

API const char *harp_coll_request_error(const struct harp_coll_request *request)
{
	return request->error ? request->error : "";
}

API int harp_coll_request_source(const struct harp_coll_request *request)
{
	return request->source;
}

API size_t harp_coll_request_count(const struct harp_coll_request *request)
{
	return request->received;
}

API void harp_coll_request_free(struct harp_coll_request *request)
{
	if (!request || atomic_load(&runtime.is_child))
		return;
	runtime_lock();
	if (request->state == OP_DONE && !request->notify)
		op_put(request);
	else
		request->is_released = true;
	runtime_unlock();
}

/* ---- queries --------------------------------------------------------------------------------- */

API int harp_coll_rank(const struct harp_coll *group)
{
	return group->rank;
}

API int harp_coll_world(const struct harp_coll *group)
{
	return group->world;
}

API const char *harp_coll_error(const struct harp_coll *group)
{
	return group->error_text;
}

API void harp_coll_stats(struct harp_coll *group, struct harp_coll_stats *stats)
{
	size_t size = stats->size < sizeof(*stats) ? stats->size : sizeof(*stats);

	runtime_lock();
	group->stats.size = size;
	memcpy(stats, &group->stats, size);
	runtime_unlock();
}

API void harp_coll_net(struct harp_coll *group, struct harp_coll_net *net)
{
	size_t size = net->size < sizeof(*net) ? net->size : sizeof(*net);

	(void)group;
	runtime_lock();
	memcpy(net, net_info(), size);
	net->size = size;
	runtime_unlock();
}
