/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_meet.c - a group's entries in the caller's key-value store.
 *
 * Theory of operation. All keys start with "harp/coll/NAME/".
 *
 *	info/RANK   struct peer_info: the rank's identity and listener. Each rank sets its own.
 *	all         The infos in rank order, which rank 0 sets when it has read them all. So only
 *	            rank 0 sends more than a few requests. If the infos are not compatible:
 *	            ALL_ERROR and a text, which all ranks report.
 *	call/RANK   struct stalled_call: the operation that has stalled on this rank, and the ranks
 *	            that it waits for. A rank sets it after a second without progress.
 *	error       Why the group failed: errno and a text. The rank that detected the error sets
 *	            it. A rank that only lost a connection sets it if no other rank does, because
 *	            then the peer was killed.
 *
 * A rank whose operation has stalled reads the calls of the ranks that it waits for, then those of
 * the ranks that these wait for. A call with the same number but another operation is the error. A
 * rank without a call of this number is missing: it runs no operation of the group.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "coll_impl.h"

#define INFO_MAGIC 0x4f464e49u
#define ALL_ERROR "HARP-COLL-ERROR "
#define WAITS_MAX 256
#define SETTLE_TRIES 4
#define SETTLE_NS (50 * 1000 * 1000)

struct stalled_call {
	struct call_header call;
	uint32_t waits_count;
	int32_t waits[WAITS_MAX];
};

/* rank -1: the key of the whole group. */
static void meet_key(const struct harp_coll *group, char key[200], const char *kind, int rank)
{
	if (rank < 0)
		snprintf(key, 200, "harp/coll/%s/%s", group->name, kind);
	else
		snprintf(key, 200, "harp/coll/%s/%s/%d", group->name, kind, rank);
}

/* ---- this process --------------------------------------------------------------------- */

/* Field 22 of /proc/PID/stat; 0: no such process, or a zombie. */
static uint64_t meet_start_ticks(int pid)
{
	char path[64], text[1024], state, *at;
	uint64_t ticks = 0;
	ssize_t bytes;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	bytes = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (bytes <= 0)
		return 0;
	text[bytes] = '\0';
	at = strrchr(text, ')'); /* field 2, the name, may contain any characters */
	if (!at ||
	    sscanf(at + 1,
		   " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %" SCNu64,
		   &state, &ticks) != 2)
		return 0;
	return state == 'Z' || state == 'X' ? 0 : ticks;
}

static uint64_t meet_inode(const char *path)
{
	struct stat status;

	return stat(path, &status) ? 0 : (uint64_t)status.st_ino;
}

bool meet_process_is_dead(const struct harp_coll *group, int rank)
{
	const struct peer_info *mine = &group->peers[group->rank], *peer = &group->peers[rank];

	return peer->pid_namespace == mine->pid_namespace && peer->start_ticks &&
	       meet_start_ticks(peer->pid) != peer->start_ticks;
}

const char *meet_rank(const struct harp_coll *group, int rank, char text[COLL_RANK_BYTES])
{
	snprintf(text, COLL_RANK_BYTES, "%d (host %s)", rank, group->peers[rank].host_name);
	return text;
}

/*
 * Identifies the kernel, /dev/shm, the PID namespace and the user: ranks with equal texts can share
 * memory and see each other's processes. Network namespaces count as hosts, for containers and
 * tests.
 */
static void meet_host(char host[COLL_HOST_BYTES], const char *setting)
{
	char boot[64] = "";
	struct stat shm;
	uint64_t hash = 0xcbf29ce484222325ull;
	uint64_t ids[5];
	int fd;

	if (!setting)
		setting = getenv("HARP_COLL_HOST");
	memset(host, 0, COLL_HOST_BYTES);
	if (setting) {
		snprintf(host, COLL_HOST_BYTES, "%s", setting);
		return;
	}
	fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		if (read(fd, boot, 36) != 36)
			boot[0] = '\0';
		close(fd);
	}
	if (!boot[0] || stat("/dev/shm", &shm))
		return; /* an empty text: no shared memory */
	ids[0] = (uint64_t)shm.st_dev;
	ids[1] = (uint64_t)shm.st_ino;
	ids[2] = meet_inode("/proc/self/ns/net");
	ids[3] = meet_inode("/proc/self/ns/pid");
	ids[4] = (uint64_t)geteuid();
	for (unsigned i = 0; i < 5; i++)
		hash = (hash ^ ids[i]) * 0x100000001b3ull;
	snprintf(host, COLL_HOST_BYTES, "%.36s/%016" PRIx64, boot, hash);
}

/* ---- opening --------------------------------------------------------------------------------- */

static int64_t meet_left_ms(int64_t deadline_ns)
{
	int64_t left = (deadline_ns - coll_now_ns()) / COLL_NSEC_PER_MSEC;

	return left > 0 ? left : 0;
}

static int meet_store_error(int rc, const char *verb, const char *key, char *error,
			    size_t error_bytes)
{
	snprintf(error, error_bytes, "the key-value store failed to %s %s: %s", verb, key,
		 strerror(-rc));
	return rc;
}

/* Lists the ranks without info. */
static void meet_missing(const struct harp_coll *group, char *text, size_t bytes)
{
	char key[200];
	struct peer_info info;
	size_t at = 0;
	int missing = 0;

	text[0] = '\0';
	for (int r = 0; r < group->world; r++) {
		size_t room = sizeof(info);

		meet_key(group, key, "info", r);
		if (group->store.get(group->store.arg, key, &info, &room) == 0)
			continue;
		if (missing++ < 16)
			at += (size_t)snprintf(text + at, bytes - at, "%s%d", at ? ", " : "", r);
	}
	if (missing > 16)
		snprintf(text + at, bytes - at, " and %d more", missing - 16);
}

static int meet_wait(const struct harp_coll *group, const char *key, int64_t deadline_ns,
		     char *error, size_t error_bytes)
{
	char missing[160];
	int rc = group->store.wait(group->store.arg, key, meet_left_ms(deadline_ns));

	if (rc == 0)
		return 0;
	if (rc != -ETIMEDOUT)
		return meet_store_error(rc, "wait for", key, error, error_bytes);
	meet_missing(group, missing, sizeof(missing));
	snprintf(error, error_bytes,
		 "group %s: rank %d of %d timed out: rank%s %s did not open it; start all ranks "
		 "with the same name, world and store",
		 group->name, group->rank, group->world, strchr(missing, ',') ? "s" : "",
		 missing[0] ? missing : "0");
	return -ETIMEDOUT;
}

/* Compares a rank's info with rank 0's. */
static int meet_check(const struct harp_coll *group, const struct peer_info *info, size_t bytes,
		      int rank, char *error, size_t error_bytes)
{
	const struct peer_info *root = &group->peers[0];

	if (bytes != sizeof(*info) || info->magic != INFO_MAGIC || info->protocol != root->protocol)
		snprintf(error, error_bytes,
			 "group %s: rank %d has another version of libharp-coll; install the same "
			 "on all hosts",
			 group->name, rank);
	else if (info->world != root->world)
		snprintf(error, error_bytes,
			 "group %s: rank %d opened it with world %u, rank 0 with %u", group->name,
			 rank, info->world, root->world);
	else if (info->wire != root->wire)
		snprintf(
			error, error_bytes,
			"group %s: rank %d opened it with wire format %s, rank 0 with %s; give all "
			"ranks the same (HARP_COLL_WIRE, or the group's option)",
			group->name, rank, call_wire_name(info->wire), call_wire_name(root->wire));
	else if (info->settings != root->settings)
		snprintf(error, error_bytes,
			 "group %s: the HARP_COLL_* variables of ranks 0 and %d differ; set the "
			 "same on all hosts",
			 group->name, rank);
	else
		return 0;
	return -EPROTO;
}

static int meet_collect(struct harp_coll *group, int64_t deadline_ns, char *error,
			size_t error_bytes)
{
	struct harp_coll_store *store = &group->store;
	char key[200], all[200], text[HARP_COLL_ERROR_BYTES + sizeof(ALL_ERROR)];
	int rc = 0;

	meet_key(group, all, "all", -1);
	for (int r = 1; r < group->world && rc == 0; r++) {
		size_t bytes = sizeof(struct peer_info);

		meet_key(group, key, "info", r);
		rc = meet_wait(group, key, deadline_ns, error, error_bytes);
		if (rc == 0) {
			rc = store->get(store->arg, key, &group->peers[r], &bytes);
			if (rc == -ENOSPC)
				rc = 0, bytes = 0;
			if (rc)
				meet_store_error(rc, "get", key, error, error_bytes);
			else
				rc = meet_check(group, &group->peers[r], bytes, r, error,
						error_bytes);
		}
	}
	if (rc) {
		int length = snprintf(text, sizeof(text), ALL_ERROR "%d %s", -rc, error);

		store->set(store->arg, all, text, (size_t)length);
		return rc;
	}
	rc = store->set(store->arg, all, group->peers,
			(size_t)group->world * sizeof(struct peer_info));
	return rc ? meet_store_error(rc, "set", all, error, error_bytes) : 0;
}

static int meet_fetch(struct harp_coll *group, int64_t deadline_ns, char *error, size_t error_bytes)
{
	struct harp_coll_store *store = &group->store;
	size_t expected = (size_t)group->world * sizeof(struct peer_info);
	size_t room = expected + HARP_COLL_ERROR_BYTES + sizeof(ALL_ERROR), bytes = room;
	char all[200], *buffer = calloc(1, room + 1);
	int rc, number = 0, skip = 0;

	if (!buffer)
		return -ENOMEM;
	meet_key(group, all, "all", -1);
	rc = meet_wait(group, all, deadline_ns, error, error_bytes);
	if (rc == 0) {
		rc = store->get(store->arg, all, buffer, &bytes);
		if (rc == -ENOSPC) /* rank 0 has a larger world */
			rc = 0, bytes = 0;
		if (rc)
			meet_store_error(rc, "get", all, error, error_bytes);
	}
	if (rc == 0 && !strncmp(buffer, ALL_ERROR, sizeof(ALL_ERROR) - 1) &&
	    sscanf(buffer + sizeof(ALL_ERROR) - 1, "%d %n", &number, &skip) == 1 && number > 0) {
		snprintf(error, error_bytes, "%s", buffer + sizeof(ALL_ERROR) - 1 + skip);
		rc = -number;
	} else if (rc == 0 && bytes != expected) {
		snprintf(error, error_bytes,
			 "group %s: rank %d opened it with world %d, rank 0 with another world or "
			 "version",
			 group->name, group->rank, group->world);
		rc = -EPROTO;
	}
	if (rc == 0)
		memcpy(group->peers, buffer, expected);
	free(buffer);
	return rc;
}

int meet_open(struct harp_coll *group, const struct harp_coll_options *options, int64_t deadline_ns,
	      char *error, size_t error_bytes)
{
	struct peer_info *mine = &group->peers[group->rank];
	char key[200];
	int rc;

	/* harp_coll_open() has set the listener's handle. */
	mine->magic = INFO_MAGIC;
	mine->protocol = CALL_PROTOCOL;
	mine->rank = (uint32_t)group->rank;
	mine->world = (uint32_t)group->world;
	mine->settings = algo_settings_hash();
	mine->wire = group->wire;
	mine->pid = getpid();
	mine->pid_namespace = meet_inode("/proc/self/ns/pid");
	mine->start_ticks = meet_start_ticks(mine->pid);
	meet_host(mine->host, options->host);
	gethostname(mine->host_name, sizeof(mine->host_name));
	if (group->rank == 0 && getrandom(mine->id, sizeof(mine->id), 0) != sizeof(mine->id)) {
		snprintf(error, error_bytes, "no random numbers: %s", strerror(errno));
		return -EIO;
	}
	if (group->world > 1) {
		meet_key(group, key, "info", group->rank);
		rc = group->store.set(group->store.arg, key, mine, sizeof(*mine));
		if (rc)
			return meet_store_error(rc, "set", key, error, error_bytes);
		rc = group->rank == 0 ? meet_collect(group, deadline_ns, error, error_bytes)
				      : meet_fetch(group, deadline_ns, error, error_bytes);
		if (rc)
			return rc;
	}
	memcpy(group->id, group->peers[0].id, sizeof(group->id));
	for (int r = 0; r < group->world; r++)
		group->peers[r].host[COLL_HOST_BYTES - 1] =
			group->peers[r].host_name[COLL_HOST_BYTES - 1] = '\0';
	return 0;
}

/* ---- failures -------------------------------------------------------------------------------- */

int meet_get_error(const struct harp_coll *group, char *text, size_t room)
{
	char key[200], value[HARP_COLL_ERROR_BYTES + 16] = "";
	size_t bytes = sizeof(value) - 1;
	int number = 0, skip = 0;

	text[0] = '\0';
	if (group->world == 1)
		return 0;
	meet_key(group, key, "error", -1);
	if (group->store.get(group->store.arg, key, value, &bytes) || bytes >= sizeof(value))
		return 0;
	value[bytes] = '\0';
	if (sscanf(value, "%d %n", &number, &skip) != 1 || number <= 0)
		return 0;
	snprintf(text, room, "%s", value + skip);
	return number;
}

void meet_put_error(const struct harp_coll *group)
{
	char key[200], value[HARP_COLL_ERROR_BYTES + 16];
	int length = snprintf(value, sizeof(value), "%d %s", -group->error, group->error_text);

	meet_key(group, key, "error", -1);
	group->store.set(group->store.arg, key, value, (size_t)length);
}

void meet_settle(struct harp_coll *group)
{
	char text[HARP_COLL_ERROR_BYTES];
	int number = 0;

	if (group->is_cause) {
		if (group->world > 1 && !meet_get_error(group, text, sizeof(text)))
			meet_put_error(group);
	} else {
		for (int i = 0; i < SETTLE_TRIES && !number; i++) {
			if (i)
				nanosleep(&(struct timespec){ .tv_nsec = SETTLE_NS }, NULL);
			number = meet_get_error(group, text, sizeof(text));
		}
		/* For ranks that wait for this one, and not for the killed one. */
		if (!number)
			meet_put_error(group);
	}
	runtime_lock();
	if (number && !strstr(group->error_text, text)) {
		size_t at = strlen(group->error_text);

		snprintf(group->error_text + at, sizeof(group->error_text) - at, ": %s", text);
	}
	if (number)
		group->error = number == ECANCELED ? -ECONNRESET : -number;
	group_finish_failure(group);
	group->is_in_store = false;
	runtime_unlock();
}

/* -ENOENT: the rank has no valid record. */
static int meet_get_call(const struct harp_coll *group, int rank, struct stalled_call *call)
{
	char key[200];
	size_t bytes = sizeof(*call);
	int rc;

	memset(call, 0, sizeof(*call));
	meet_key(group, key, "call", rank);
	rc = group->store.get(group->store.arg, key, call, &bytes);
	if (rc == 0 && (bytes < sizeof(call->call) + sizeof(call->waits_count) ||
			call->waits_count > WAITS_MAX))
		rc = -ENOENT;
	return rc;
}

/* Lists as many ranks with their hosts as fit. */
static void meet_list(const struct harp_coll *group, char *text, size_t bytes, const int *ranks,
		      int count)
{
	char rank[COLL_RANK_BYTES];
	size_t at = 0;

	text[0] = '\0';
	for (int i = 0; i < count; i++) {
		if (bytes - at < COLL_RANK_BYTES + 32) {
			snprintf(text + at, bytes - at, " and %d more", count - i);
			break;
		}
		at += (size_t)snprintf(text + at, bytes - at, "%s%s", i ? ", " : "",
				       meet_rank(group, ranks[i], rank));
	}
}

struct diagnosis {
	int *missing, missing_count;
	int other; /* a rank in another operation; -1: none */
	struct call_header other_call;
};

/* Reads the calls of the ranks that this rank waits for, directly or through others. */
static void meet_follow(const struct harp_coll *group, struct diagnosis *diagnosis)
{
	size_t world = (size_t)group->world;
	bool *is_queued = calloc(world, sizeof(*is_queued));
	int *queue = calloc(world, sizeof(*queue)), queue_count = 0;
	struct stalled_call *call = malloc(sizeof(*call));

	diagnosis->missing = calloc(world, sizeof(int));
	diagnosis->missing_count = 0;
	diagnosis->other = -1;
	if (!is_queued || !queue || !call || !diagnosis->missing)
		goto done;
	is_queued[group->rank] = true;
	for (int i = 0; i < group->waits_count; i++) {
		is_queued[group->waits[i]] = true;
		queue[queue_count++] = group->waits[i];
	}
	for (int i = 0; i < queue_count && diagnosis->other < 0; i++) {
		int rank = queue[i], rc = meet_get_call(group, rank, call);

		if (rc && rc != -ENOENT) { /* the store does not answer */
			diagnosis->missing_count = 0;
			break;
		}
		if (rc || call->call.seq != group->waits_call.seq) {
			diagnosis->missing[diagnosis->missing_count++] = rank;
			continue;
		}
		if (!call_matches(&group->waits_call, &call->call)) {
			diagnosis->other = rank;
			diagnosis->other_call = call->call;
		}
		for (uint32_t w = 0; w < call->waits_count; w++) {
			int next = call->waits[w];

			if (next < 0 || next >= group->world || is_queued[next])
				continue;
			is_queued[next] = true;
			queue[queue_count++] = next;
		}
	}
done:
	free(is_queued);
	free(queue);
	free(call);
}

static void meet_publish_call(const struct harp_coll *group)
{
	struct stalled_call call = { .call = group->waits_call };
	char key[200];

	for (int i = 0; i < group->waits_count && i < WAITS_MAX; i++)
		call.waits[call.waits_count++] = group->waits[i];
	meet_key(group, key, "call", group->rank);
	group->store.set(group->store.arg, key, &call, sizeof(call));
}

static void meet_report(struct harp_coll *group, const struct diagnosis *diagnosis,
			const char *their_error)
{
	char mine[192], theirs[192], list[480];

	call_describe(&group->waits_call, mine, sizeof(mine));
	if (their_error) {
		group_fail(group, false, -ECONNRESET, "%s", their_error);
	} else if (diagnosis->other >= 0) {
		call_describe(&diagnosis->other_call, theirs, sizeof(theirs));
		group_fail(group, true, -EPROTO,
			   "ranks called different operations as number %" PRIu64
			   ": rank %d called %s, rank %d called %s; all ranks of a group must call "
			   "the same operations in the same order",
			   group->waits_call.seq, group->rank, mine, diagnosis->other, theirs);
	} else if (group->has_timed_out) {
		const int *ranks = diagnosis->missing_count ? diagnosis->missing : group->waits;
		int count =
			diagnosis->missing_count ? diagnosis->missing_count : group->waits_count;

		meet_list(group, list, sizeof(list), ranks, count);
		if (group->waits_call.kind == CALL_COLLECTIVE)
			group_fail(group, true, -ETIMEDOUT,
				   "rank %d: %s, number %" PRIu64
				   ", timed out: rank%s %s did not %s",
				   group->rank, mine, group->waits_call.seq, count > 1 ? "s" : "",
				   list,
				   diagnosis->missing_count ? "take part in it"
							    : "answer: the network may be cut");
		else
			group_fail(group, true, -ETIMEDOUT, "rank %d: %s timed out: %s%s",
				   group->rank, mine,
				   count ? "no answer from rank " : "no rank sent a message", list);
	}
}

void meet_diagnose(struct harp_coll *group)
{
	struct diagnosis diagnosis = { .other = -1 };
	char text[HARP_COLL_ERROR_BYTES / 2];
	bool has_error = meet_get_error(group, text, sizeof(text)) != 0;

	if (!has_error && group->waits_call.kind == CALL_COLLECTIVE && group->world > 1) {
		meet_publish_call(group);
		meet_follow(group, &diagnosis);
	}
	runtime_lock();
	group->has_stalled = false;
	/* The operation may have continued while this thread used the store. */
	if (group->state == GROUP_OPEN && group_still_waits(group))
		meet_report(group, &diagnosis, has_error ? text : NULL);
	group->has_timed_out = false;
	group->is_in_store = false;
	runtime_unlock();
	free(diagnosis.missing);
}
