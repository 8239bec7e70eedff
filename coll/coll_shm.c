/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_shm.c - links between ranks of one host, through shared memory.
 *
 * Theory of operation. The ranks of a group on one host map one segment. It has a ring for each
 * ordered pair and link class. A ring carries frames: eight bytes with the message's length, then
 * the message, padded to a multiple of eight. The sender copies data in while the ring has space,
 * and the receiver copies it to the posted buffer. So a message may be longer than the ring. head
 * and tail count bytes since the start. The file is unlinked when all ranks have mapped it.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "coll_impl.h"

#define SHM_RING_BYTES (256u << 10)
#define SHM_FRAME_BYTES 8u
#define SHM_REMEDY "free space in /dev/shm, or disable shared memory with HARP_COLL_HOST="
#define SHM_CHECK_NS (100 * COLL_NSEC_PER_MSEC) /* interval of checks for failed ranks */

struct shm_ring {
	/* Release: the earlier bytes are in the ring. Writer: the sender. */
	_Alignas(64) _Atomic uint64_t head;
	/* Release: the earlier bytes were copied out. Writer: the receiver. */
	_Alignas(64) _Atomic uint64_t tail;
	_Alignas(64) unsigned char data[SHM_RING_BYTES];
};

enum shm_state { SHM_ABSENT, SHM_ATTACHED, SHM_CLOSED };

struct shm_header {
	_Atomic uint32_t states[HARP_COLL_WORLD_MAX]; /* [local index], enum shm_state */
};

struct shm {
	size_t bytes;
	char name[96];
	struct shm_header *header;
	struct shm_ring *rings; /* [(class * local + from) * local + to] */
};

static size_t shm_header_bytes(void)
{
	return (sizeof(struct shm_header) + 4095) / 4096 * 4096;
}

/* Allocates pages of the segment. Otherwise, their first use in a full /dev/shm raises SIGBUS.
 * -ENOSPC. */
static int shm_populate(void *from, size_t bytes)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)from & -page;

	bytes += (uintptr_t)from - at;
	/* QEMU's user mode does not implement this advice: EINVAL. */
	return madvise((void *)at, bytes, MADV_POPULATE_WRITE) && errno != EINVAL ? -ENOSPC : 0;
}

struct shm_wait {
	int64_t deadline_ns, check_ns;
	bool is_published;                 /* another rank failed and has informed the others */
	char error[HARP_COLL_ERROR_BYTES]; /* why this rank stopped waiting */
};

/* Sleeps once while this rank waits for another one of its host. -ETIMEDOUT; -ECONNRESET: it died;
 * else the error of a rank that failed. */
static int shm_sleep(const struct harp_coll *group, struct shm_wait *wait, int rank)
{
	int64_t now_ns = coll_now_ns();
	int pid = (int)group->peers[rank].pid, number;
	char name[COLL_RANK_BYTES];

	if (now_ns >= wait->check_ns || now_ns > wait->deadline_ns) {
		wait->check_ns = now_ns + SHM_CHECK_NS;
		number = meet_get_error(group, wait->error, sizeof(wait->error));
		wait->is_published = number;
		if (number)
			return -number;
		if (meet_process_is_dead(group, rank)) {
			snprintf(wait->error, sizeof(wait->error), "rank %s died, process %d",
				 meet_rank(group, rank, name), pid);
			return -ECONNRESET;
		}
	}
	if (now_ns > wait->deadline_ns) {
		snprintf(
			wait->error, sizeof(wait->error),
			"rank %s did not map the shared memory of group %s in time; process %d may "
			"be stopped",
			meet_rank(group, rank, name), group->name, pid);
		return -ETIMEDOUT;
	}
	nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
	return 0;
}

/* Beyond RLIMIT_FSIZE (ulimit -f), ftruncate() raises SIGXFSZ, which kills the application. */
static int shm_resize(int fd, size_t bytes)
{
	struct rlimit limit;

	if (!getrlimit(RLIMIT_FSIZE, &limit) && bytes > limit.rlim_cur)
		return -EFBIG;
	return ftruncate(fd, (off_t)bytes) ? -errno : 0;
}

/* The lowest rank of the host creates the segment; the others wait until it has its full size. */
static int shm_file(const struct harp_coll *group, const struct shm *shm, struct shm_wait *wait)
{
	int rc;

	if (group->local_index == 0) {
		int fd = shm_open(shm->name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

		rc = fd < 0 ? -errno : shm_resize(fd, shm->bytes);
		if (!rc)
			return fd;
		if (fd >= 0) {
			close(fd);
			shm_unlink(shm->name);
		}
		return rc;
	}
	for (;;) {
		int fd = shm_open(shm->name, O_RDWR | O_CLOEXEC, 0);
		struct stat status;

		if (fd < 0 && errno != ENOENT)
			return -errno;
		if (fd >= 0 && fstat(fd, &status) == 0 && (size_t)status.st_size == shm->bytes)
			return fd;
		if (fd >= 0)
			close(fd);
		rc = shm_sleep(group, wait, group->local_ranks[0]);
		if (rc)
			return rc;
	}
}

/* Informs the ranks that wait for this one. */
static void shm_publish(struct harp_coll *group, int error, const char *text)
{
	group->error = error;
	snprintf(group->error_text, sizeof(group->error_text), "rank %d: %s", group->rank, text);
	meet_put_error(group);
}

int shm_open_group(struct harp_coll *group, int64_t deadline_ns, char *error, size_t error_bytes)
{
	size_t local = (size_t)group->local_count;
	struct shm_wait wait = { deadline_ns, .check_ns = coll_now_ns() + SHM_CHECK_NS };
	struct shm *shm;
	uint64_t id;
	int fd, rc;
	void *map;

	if (local < 2)
		return 0;
	shm = calloc(1, sizeof(*shm));
	if (!shm)
		return -ENOMEM;
	memcpy(&id, group->id, sizeof(id));
	snprintf(shm->name, sizeof(shm->name), "/harp-coll-%016" PRIx64 "-%d", id,
		 group->local_ranks[0]);
	shm->bytes = shm_header_bytes() + LINK_CLASSES * local * local * sizeof(struct shm_ring);
	fd = shm_file(group, shm, &wait);
	if (fd < 0) {
		rc = fd;
		goto fail;
	}
	map = mmap(NULL, shm->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	rc = map == MAP_FAILED ? -errno : 0;
	close(fd);
	if (rc)
		goto fail;
	madvise(map, shm->bytes, MADV_DONTFORK);
	rc = shm_populate(map, shm_header_bytes());
	if (rc) {
		munmap(map, shm->bytes);
		goto fail;
	}
	shm->header = map;
	shm->rings = (struct shm_ring *)(void *)((char *)map + shm_header_bytes());
	atomic_store(&shm->header->states[group->local_index], SHM_ATTACHED);
	for (size_t i = 0; i < local;) {
		if (atomic_load(&shm->header->states[i]) != SHM_ABSENT) {
			i++;
			continue;
		}
		rc = shm_sleep(group, &wait, group->local_ranks[i]);
		if (rc) {
			munmap(map, shm->bytes);
			goto fail;
		}
	}
	shm_unlink(shm->name); /* every rank does, because the creator may have been killed */
	group->shm = shm;
	return 0;
fail:
	shm_unlink(shm->name);
	if (wait.error[0])
		snprintf(error, error_bytes, "%s", wait.error);
	else
		snprintf(
			error, error_bytes,
			"shared memory of this host's ranks (/dev/shm%s, %zu bytes): %s; %s" SHM_REMEDY,
			shm->name, shm->bytes, strerror(-rc),
			rc == -EFBIG ? "raise the limit (ulimit -f), " : "");
	if (!wait.is_published)
		shm_publish(group, rc, error);
	free(shm);
	return rc;
}

void shm_close_group(struct harp_coll *group)
{
	if (!group->shm)
		return;
	munmap(group->shm->header, group->shm->bytes);
	free(group->shm);
	group->shm = NULL;
}

static int shm_local_index(const struct harp_coll *group, int peer)
{
	for (int i = 0; i < group->local_count; i++)
		if (group->local_ranks[i] == peer)
			return i;
	return -1;
}

int shm_bind(struct link *link)
{
	struct harp_coll *group = link->group;
	size_t local = (size_t)group->local_count, me = (size_t)group->local_index, base;
	int peer = group->shm ? shm_local_index(group, link->peer) : -1, rc;

	if (peer < 0)
		return 0;
	base = (size_t)link->class * local * local;
	link->shm_out = &group->shm->rings[base + me * local + (size_t)peer];
	link->shm_in = &group->shm->rings[base + (size_t)peer * local + me];
	rc = shm_populate(link->shm_out, sizeof(*link->shm_out));
	if (!rc) /* the sender populates the data */
		rc = shm_populate(link->shm_in, offsetof(struct shm_ring, data));
	if (rc)
		group_fail(group, true, rc,
			   "shared memory for messages between ranks %d and %d: %s; " SHM_REMEDY,
			   group->rank, link->peer, strerror(-rc));
	return rc;
}

void shm_set_closed(struct harp_coll *group)
{
	if (group->shm)
		atomic_store(&group->shm->header->states[group->local_index], SHM_CLOSED);
}

bool shm_peer_closed(const struct harp_coll *group, int peer)
{
	int index = group->shm ? shm_local_index(group, peer) : -1;

	return index >= 0 && atomic_load(&group->shm->header->states[index]) == SHM_CLOSED;
}

/* Copies into the ring, beginning at byte `at` of the stream. */
static void shm_put(struct shm_ring *ring, uint64_t at, const void *data, size_t bytes)
{
	size_t from = at % SHM_RING_BYTES;
	size_t first = bytes < SHM_RING_BYTES - from ? bytes : SHM_RING_BYTES - from;

	memcpy(ring->data + from, data, first);
	memcpy(ring->data, (const char *)data + first, bytes - first);
}

static void shm_take(const struct shm_ring *ring, uint64_t at, void *data, size_t bytes)
{
	size_t from = at % SHM_RING_BYTES;
	size_t first = bytes < SHM_RING_BYTES - from ? bytes : SHM_RING_BYTES - from;

	memcpy(data, ring->data + from, first);
	memcpy((char *)data + first, ring->data, bytes - first);
}

static size_t shm_padded(size_t bytes)
{
	return (bytes + SHM_FRAME_BYTES - 1) / SHM_FRAME_BYTES * SHM_FRAME_BYTES;
}

static int shm_send_progress(struct link *link)
{
	struct half *half = &link->out;
	struct shm_ring *ring = link->shm_out;
	uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
	int moved = 0;

	while (half->done < half->posted) {
		struct xfer *xfer = &half->xfers[half->done % COLL_XFERS];
		uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
		size_t used = (size_t)(head - tail), sent, bytes;
		/* The padding of a frame that the receiver has not finished may exceed the ring. */
		size_t room = used < SHM_RING_BYTES ? SHM_RING_BYTES - used : 0;

		if (half->moved == 0) {
			uint64_t frame = xfer->bytes;

			if (room < SHM_FRAME_BYTES)
				break;
			shm_put(ring, head, &frame, sizeof(frame));
			head += SHM_FRAME_BYTES;
			room -= SHM_FRAME_BYTES;
			half->moved = SHM_FRAME_BYTES;
			moved = 1;
		}
		sent = half->moved - SHM_FRAME_BYTES;
		/* In quarters of the ring, so that the receiver copies at the same time. */
		bytes = xfer->bytes - sent < room ? xfer->bytes - sent : room;
		if (bytes > SHM_RING_BYTES / 4)
			bytes = SHM_RING_BYTES / 4;
		if (bytes)
			shm_put(ring, head, (const char *)xfer->data + sent, bytes);
		sent += bytes;
		half->moved += bytes;
		if (sent == xfer->bytes) {
			/* Frames start at multiples of eight, so there is always space for the
			 * padding. */
			head += shm_padded(xfer->bytes) - xfer->bytes;
			half->moved = 0;
			half->done++;
			half->started = half->done;
			if (xfer->owned)
				bounce_put(xfer->owned);
		}
		head += bytes;
		atomic_store_explicit(&ring->head, head, memory_order_release);
		moved |= half->moved == 0 || bytes > 0;
		if (half->moved && !bytes)
			break;
	}
	return moved;
}

static int shm_recv_progress(struct link *link)
{
	struct half *half = &link->in;
	struct shm_ring *ring = link->shm_in;
	uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
	int moved = 0;

	while (half->done < half->posted) {
		struct xfer *xfer = &half->xfers[half->done % COLL_XFERS];
		uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
		size_t available = (size_t)(head - tail), received, bytes;

		if (half->moved == 0) {
			uint64_t frame;

			if (available < SHM_FRAME_BYTES)
				break;
			shm_take(ring, tail, &frame, sizeof(frame));
			if (frame > xfer->bytes)
				return -EPROTO;
			half->frame = frame;
			half->moved = SHM_FRAME_BYTES;
			tail += SHM_FRAME_BYTES;
			available -= SHM_FRAME_BYTES;
			moved = 1;
		}
		received = half->moved - SHM_FRAME_BYTES;
		bytes = half->frame - received < available ? half->frame - received : available;
		if (bytes > SHM_RING_BYTES / 4)
			bytes = SHM_RING_BYTES / 4;
		if (bytes) {
			shm_take(ring, tail, (char *)xfer->data + received, bytes);
			moved = 1;
		}
		received += bytes;
		tail += bytes;
		half->moved += bytes;
		if (received == half->frame) {
			tail += shm_padded(received) - received;
			xfer->received = received;
			link->group->stats.shm_received_bytes += received;
			link->group->stats.shm_received_messages++;
			half->moved = 0;
			half->done++;
			half->started = half->done;
		}
		atomic_store_explicit(&ring->tail, tail, memory_order_release);
		if (half->moved && !bytes)
			break;
	}
	return moved;
}

int shm_progress(struct link *link)
{
	int in = 0, out;

	if (link->in.done < link->in.posted)
		in = shm_recv_progress(link);
	if (in < 0)
		return in;
	out = link->out.done < link->out.posted ? shm_send_progress(link) : 0;
	if (!in && !out && link->in.done < link->in.posted &&
	    shm_peer_closed(link->group, link->peer)) {
		/* The peer may have sent between the two checks. */
		in = shm_recv_progress(link);
		return in ? in : -ECONNRESET;
	}
	return in | out;
}
