/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page.c - creates, finds and reads statistics pages in shared memory without trusting them.
 *
 * All reads use pread(). A mapping would be faster, but the owner could crash the reader by
 * truncating the file or by using another file system. A copy can only contain wrong bytes, which
 * this code checks.
 */
#include "harp_page.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memfd.h"

#define PAGE_PARTS_MAX 64u
#define PAGE_STRIDE_MAX 65536u
/* Retries per call, and per record within it. An owner writes for about a microsecond per
 * millisecond, so more retries mean another problem. */
#define PAGE_TRIES 1000u
#define PAGE_RECORD_TRIES 20u

static int __attribute__((format(printf, 4, 5)))
page_fail(char *why, size_t why_len, int error, const char *format, ...)
{
	va_list args;

	if (why && why_len) {
		va_start(args, format);
		vsnprintf(why, why_len, format, args);
		va_end(args);
	}
	return error;
}

static int page_create(size_t bytes, int *out)
{
	int fd = memfd_sealed(HARP_PAGE_NAME, 0, bytes);

	if (fd < 0)
		return fd;
	*out = fd;
	return 0;
}

int harp_page_create_fd(uint32_t flows, int *out)
{
	return flows > HARP_PAGE_FLOWS_MAX ? -EINVAL : page_create(harp_page_bytes(flows), out);
}

int harp_page_create_job_fd(uint32_t lanes, int *out)
{
	return lanes > HARP_PAGE_FLOWS_MAX ? -EINVAL : page_create(harp_page_job_bytes(lanes), out);
}

/* ---- reading -------------------------------------------------------------------------------- */

/* Reads exactly `bytes`, or returns -errno; -EPROTO if the file is shorter. */
static int page_get(int fd, uint64_t offset, void *into, size_t bytes)
{
	ssize_t got = pread(fd, into, bytes, (off_t)offset);

	if (got < 0)
		return -errno;
	return (size_t)got == bytes ? 0 : -EPROTO;
}

/* True if a part lies within the page. */
static bool page_is_part_valid(const struct harp_page_header *header, uint32_t part)
{
	const struct harp_page_place *place = &header->parts[part];
	uint64_t table_end = offsetof(struct harp_page_header, parts) +
			     header->part_count * sizeof(header->parts[0]);
	uint64_t end = place->offset + sizeof(struct harp_page_lock) +
		       (uint64_t)place->stride * place->count;

	return place->offset % 64 == 0 && place->offset >= table_end && place->stride >= 8 &&
	       place->stride % 8 == 0 && place->stride <= PAGE_STRIDE_MAX &&
	       place->count <= HARP_PAGE_FLOWS_MAX && end <= header->page_bytes;
}

static int page_header(int fd, struct harp_page_header *header, char *why, size_t why_len)
{
	struct stat st;
	uint32_t parts;
	int rc;

	if (fstat(fd, &st) < 0)
		return page_fail(why, why_len, -errno, "fstat: %s", strerror(errno));
	if (!S_ISREG(st.st_mode))
		return page_fail(why, why_len, -EPROTO, "not a regular file");
	if (st.st_size < (off_t)sizeof(*header))
		return page_fail(why, why_len, -EMSGSIZE, "%lld bytes are too few for a page",
				 (long long)st.st_size);
	if (st.st_size > (off_t)HARP_PAGE_BYTES_MAX)
		return page_fail(why, why_len, -EFBIG, "%lld bytes are more than a page may have",
				 (long long)st.st_size);
	rc = page_get(fd, 0, header, sizeof(*header));
	/* Pairs with the owner's store-release of magic. */
	atomic_thread_fence(memory_order_acquire);
	if (rc)
		return page_fail(why, why_len, rc, "reading: %s", strerror(-rc));
	if (header->magic == 0)
		return page_fail(why, why_len, -ENODATA, "its owner has not published yet");
	if (header->magic != HARP_PAGE_MAGIC)
		return page_fail(why, why_len, -EPROTO, "not a statistics page: wrong magic");
	if (header->version != HARP_PAGE_VERSION)
		return page_fail(why, why_len, -EPROTONOSUPPORT,
				 "version %u of the page's format; this reader knows %u",
				 header->version, HARP_PAGE_VERSION);
	parts = header->part_count;
	if (parts == 0 || parts > PAGE_PARTS_MAX || header->page_bytes > (uint64_t)st.st_size)
		return page_fail(why, why_len, -EPROTO,
				 "the page's header is invalid: %u parts, %llu "
				 "bytes of %lld",
				 parts, (unsigned long long)header->page_bytes,
				 (long long)st.st_size);
	for (uint32_t i = 0; i < parts && i < HARP_PAGE_PARTS; i++)
		if (!page_is_part_valid(header, i))
			return page_fail(why, why_len, -EPROTO,
					 "the page's header is invalid: part %u exceeds the page",
					 i);
	return 0;
}

int harp_page_check(int fd, char *why, size_t why_len)
{
	struct harp_page_header header;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0)
		return page_fail(why, why_len, -EPERM, "not a sealed memfd");
	if ((seals & MEMFD_SEALS) != MEMFD_SEALS)
		return page_fail(why, why_len, -EPERM, "not sealed against resizing");
	return page_header(fd, &header, why, why_len);
}

/* ---- parts ---------------------------------------------------------------------------------- */

/* Reads bytes at offset under the seqlock at lock_offset. */
static int page_get_locked(int fd, uint64_t lock_offset, uint64_t offset, void *into, size_t bytes,
			   unsigned tries)
{
	uint64_t before, after;
	int rc;

	while (tries-- > 0) {
		rc = page_get(fd, lock_offset, &before, sizeof(before));
		/* Pairs with the owner's store-release of an even number. */
		atomic_thread_fence(memory_order_acquire);
		if (rc)
			return rc;
		if (before & 1)
			continue;
		rc = page_get(fd, offset, into, bytes);
		/* Pairs with the owner's fence after the odd number: newer data implies a changed
		 * number. */
		atomic_thread_fence(memory_order_acquire);
		if (!rc)
			rc = page_get(fd, lock_offset, &after, sizeof(after));
		if (rc)
			return rc;
		if (before == after)
			return 0;
	}
	return -EBUSY;
}

/* Copies the fields that both the page's format and the reader's have; the reader's others are
 * 0. */
static void page_item_copy(uint8_t *item, uint32_t item_bytes, const uint8_t *source,
			   uint32_t stride)
{
	uint32_t bytes = item_bytes < stride ? item_bytes : stride;

	memcpy(item, source, bytes);
	memset(item + bytes, 0, item_bytes - bytes);
}

/* True for parts in which every item begins with a seqlock. */
static bool page_part_has_records(enum harp_page_part part)
{
	return part == HARP_PAGE_FLOWS || part == HARP_PAGE_COMMS || part == HARP_PAGE_LANES;
}

/*
 * Each record has its own seqlock. Reads all records three times in three calls. The sequence
 * numbers of the first and last copy tell which records of the middle copy are consistent. Reads
 * the other records one by one.
 */
static int page_read_records(int fd, uint64_t offset, uint8_t *items, uint32_t stride,
			     uint32_t count)
{
	size_t bytes = (size_t)stride * count;
	unsigned tries = PAGE_TRIES;
	uint8_t *before = malloc(bytes * 2), *after = before + bytes;
	int rc = before ? page_get(fd, offset, before, bytes) : -ENOMEM;

	/* Both pair with the owner's side, as in page_get_locked(). */
	atomic_thread_fence(memory_order_acquire);
	if (!rc)
		rc = page_get(fd, offset, items, bytes);
	atomic_thread_fence(memory_order_acquire);
	if (!rc)
		rc = page_get(fd, offset, after, bytes);
	for (size_t at = 0; at < bytes && !rc; at += stride) {
		uint64_t first, last;

		memcpy(&first, before + at, sizeof(first));
		memcpy(&last, after + at, sizeof(last));
		if (first == last && !(first & 1))
			continue;
		rc = tries > 0 ? page_get_locked(fd, offset + at, offset + at, items + at, stride,
						 PAGE_RECORD_TRIES)
			       : -EBUSY;
		tries -= tries > 0;
		if (rc == -EBUSY) {
			memset(items + at, 0, stride);
			rc = 0;
		}
	}
	free(before);
	return rc;
}

int harp_page_read(int fd, enum harp_page_part part, uint32_t first, void *items,
		   uint32_t item_bytes, uint32_t max)
{
	struct harp_page_header header = { 0 };
	const struct harp_page_place *place;
	uint64_t offset;
	uint8_t *copy;
	int rc = page_header(fd, &header, NULL, 0);

	if (rc)
		return rc;
	if ((uint32_t)part >= header.part_count || (uint32_t)part >= HARP_PAGE_PARTS)
		return 0;
	place = &header.parts[part];
	if (first >= place->count || max == 0)
		return 0;
	if (max > place->count - first)
		max = place->count - first;
	copy = malloc((size_t)max * place->stride);
	if (!copy)
		return -ENOMEM;
	offset = place->offset + sizeof(struct harp_page_lock) + (uint64_t)first * place->stride;
	if (page_part_has_records(part))
		rc = page_read_records(fd, offset, copy, place->stride, max);
	else
		rc = page_get_locked(fd, place->offset, offset, copy, (size_t)max * place->stride,
				     PAGE_TRIES);
	for (uint32_t i = 0; i < max && !rc; i++)
		page_item_copy((uint8_t *)items + (size_t)i * item_bytes, item_bytes,
			       copy + (size_t)i * place->stride, place->stride);
	free(copy);
	return rc ? rc : (int)max;
}
