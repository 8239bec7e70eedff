/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture.c - a ring of captured packets, written as pcapng (draft-ietf-opsawg-pcapng).
 *
 * A record of the ring is a header and the packet's bytes, padded to 8. head and tail count bytes
 * since the start; their difference is the content. Blocks of the file have the host's byte order,
 * which the section header's magic identifies.
 */
#include "nic/capture.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CAPTURE_SNAP_MAX 65535u
#define CAPTURE_FILE_BUFFER 65536u

#define PCAPNG_SHB 0x0a0d0d0au /* section 4.1 */
#define PCAPNG_IDB 1u          /* section 4.2 */
#define PCAPNG_EPB 6u          /* section 4.3 */
#define PCAPNG_MAGIC 0x1a2b3c4du
#define PCAPNG_LINKTYPE_ETHERNET 1u
#define PCAPNG_OPT_END 0u
#define PCAPNG_IF_NAME 2u
#define PCAPNG_IF_TSRESOL 9u
#define PCAPNG_EPB_FLAGS 2u
#define PCAPNG_SHB_USERAPPL 4u

struct capture_record {
	uint64_t now_ns;
	uint32_t kept_bytes, packet_bytes;
	uint32_t direction;
	uint32_t reserved;
};
static_assert(sizeof(struct capture_record) % 8 == 0, "records stay aligned");

struct capture {
	uint64_t head, tail; /* bytes ever written, ever dropped */
	uint64_t packets, dropped;
	uint64_t size;
	uint32_t snap_len;
	uint8_t *ring;
};

/* Output buffer of the file, flushed in large writes. */
struct capture_file {
	int fd, error;
	size_t used;
	uint8_t buf[CAPTURE_FILE_BUFFER];
};

static inline uint64_t capture_pad(uint64_t len, uint64_t to)
{
	return (len + to - 1) & ~(to - 1);
}

int capture_create(struct capture **out, size_t ring_bytes, uint32_t snap_len)
{
	uint32_t snap = snap_len && snap_len < CAPTURE_SNAP_MAX ? snap_len : CAPTURE_SNAP_MAX;
	uint64_t size = ring_bytes & ~(uint64_t)7;

	if (size < sizeof(struct capture_record) + 64)
		return -EINVAL;
	/* A small ring truncates packets, so that one always fits. */
	if (snap > (size - sizeof(struct capture_record)) / 2)
		snap = (uint32_t)((size - sizeof(struct capture_record)) / 2);

	struct capture *c = calloc(1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	c->ring = malloc(size);
	if (!c->ring) {
		free(c);
		return -ENOMEM;
	}
	c->size = size;
	c->snap_len = snap;
	*out = c;
	return 0;
}

void capture_destroy(struct capture *capture)
{
	if (!capture)
		return;
	free(capture->ring);
	free(capture);
}

uint64_t capture_count(const struct capture *capture)
{
	return capture->packets;
}

uint64_t capture_dropped(const struct capture *capture)
{
	return capture->dropped;
}

static void capture_put(struct capture *c, const void *data, size_t len)
{
	size_t at = (size_t)(c->head % c->size);
	size_t first = len < c->size - at ? len : (size_t)(c->size - at);

	memcpy(c->ring + at, data, first);
	memcpy(c->ring, (const uint8_t *)data + first, len - first);
	c->head += len;
}

static void capture_get(const struct capture *c, uint64_t from, void *data, size_t len)
{
	size_t at = (size_t)(from % c->size);
	size_t first = len < c->size - at ? len : (size_t)(c->size - at);

	memcpy(data, c->ring + at, first);
	memcpy((uint8_t *)data + first, c->ring, len - first);
}

static uint64_t capture_record_bytes(const struct capture_record *r)
{
	return sizeof(*r) + capture_pad(r->kept_bytes, 8);
}

void capture_packet(struct capture *c, enum capture_direction direction, uint64_t now_ns,
		    const uint8_t *head, struct frame *f, uint32_t more)
{
	struct capture_record r = { .now_ns = now_ns, .direction = direction };
	struct frame *packet = f;
	uint32_t after = more;

	r.packet_bytes = (uint32_t)(f->pub.data + f->pub.len - head);
	for (const struct frame *g = f; (g = frame_after(g, &packet, &after)) != NULL;)
		r.packet_bytes += g->pub.len;
	r.kept_bytes = r.packet_bytes < c->snap_len ? r.packet_bytes : c->snap_len;

	while (c->size - (c->head - c->tail) < capture_record_bytes(&r)) {
		struct capture_record oldest;

		capture_get(c, c->tail, &oldest, sizeof(oldest));
		c->tail += capture_record_bytes(&oldest);
		c->packets--;
		c->dropped++;
	}

	uint64_t end = c->head + capture_record_bytes(&r);
	uint32_t left = r.kept_bytes, n = (uint32_t)(f->pub.data + f->pub.len - head);

	capture_put(c, &r, sizeof(r));
	packet = f;
	for (const struct frame *g = f; g && left > 0;) {
		n = n < left ? n : left;
		capture_put(c, head, n);
		left -= n;
		g = frame_after(g, &packet, &more);
		head = g ? g->pub.data : NULL;
		n = g ? g->pub.len : 0;
	}
	c->head = end; /* readers skip the padding */
	c->packets++;
}

static void capture_file_flush(struct capture_file *file)
{
	for (size_t done = 0; done < file->used && !file->error;) {
		ssize_t n = write(file->fd, file->buf + done, file->used - done);

		if (n > 0)
			done += (size_t)n;
		else if (n < 0 && errno != EINTR)
			file->error = -errno;
	}
	file->used = 0;
}

/* Reserves len zeroed bytes, at most the buffer's size. */
static uint8_t *capture_file_room(struct capture_file *file, size_t len)
{
	if (sizeof(file->buf) - file->used < len)
		capture_file_flush(file);

	uint8_t *p = file->buf + file->used;

	memset(p, 0, len);
	file->used += len;
	return p;
}

static void capture_file_bytes(struct capture_file *file, const void *data, size_t len)
{
	memcpy(capture_file_room(file, len), data, len);
}

static void capture_file_u32(struct capture_file *file, uint32_t x)
{
	capture_file_bytes(file, &x, sizeof(x));
}

/* Section 3.5: code, length, value padded to 4. */
static void capture_file_option(struct capture_file *file, uint16_t code, const void *value,
				uint16_t len)
{
	uint16_t head[2] = { code, len };

	capture_file_bytes(file, head, sizeof(head));
	memcpy(capture_file_room(file, capture_pad(len, 4)), value, len);
}

static void capture_file_section(struct capture_file *file)
{
	static const char app[] = "HARP " HARP_VERSION;
	uint32_t total = (uint32_t)(28 + 4 + capture_pad(sizeof(app) - 1, 4) + 4);
	const uint16_t version[2] = { 1, 0 };
	const int64_t length_unknown = -1;

	capture_file_u32(file, PCAPNG_SHB);
	capture_file_u32(file, total);
	capture_file_u32(file, PCAPNG_MAGIC);
	capture_file_bytes(file, version, sizeof(version));
	capture_file_bytes(file, &length_unknown, sizeof(length_unknown));
	capture_file_option(file, PCAPNG_SHB_USERAPPL, app, sizeof(app) - 1);
	capture_file_u32(file, PCAPNG_OPT_END);
	capture_file_u32(file, total);
}

static void capture_file_interface(struct capture_file *file, const char *ifname, uint32_t snap_len)
{
	uint16_t name_len = (uint16_t)strlen(ifname);
	uint32_t total = (uint32_t)(20 + 4 + capture_pad(name_len, 4) + 8 + 4);
	const uint16_t linktype[2] = { PCAPNG_LINKTYPE_ETHERNET, 0 };
	const uint8_t nanoseconds = 9;

	capture_file_u32(file, PCAPNG_IDB);
	capture_file_u32(file, total);
	capture_file_bytes(file, linktype, sizeof(linktype));
	capture_file_u32(file, snap_len);
	capture_file_option(file, PCAPNG_IF_NAME, ifname, name_len);
	capture_file_option(file, PCAPNG_IF_TSRESOL, &nanoseconds, 1);
	capture_file_u32(file, PCAPNG_OPT_END);
	capture_file_u32(file, total);
}

static void capture_file_packet(struct capture_file *file, const struct capture *c, uint64_t at,
				const struct capture_record *r, int64_t wall_offset_ns)
{
	uint64_t wall_ns = r->now_ns + (uint64_t)wall_offset_ns;
	uint32_t padded = (uint32_t)capture_pad(r->kept_bytes, 4);
	uint32_t total = 32 + padded + 12;
	uint32_t flags = r->direction;

	capture_file_u32(file, PCAPNG_EPB);
	capture_file_u32(file, total);
	capture_file_u32(file, 0); /* interface */
	capture_file_u32(file, (uint32_t)(wall_ns >> 32));
	capture_file_u32(file, (uint32_t)wall_ns);
	capture_file_u32(file, r->kept_bytes);
	capture_file_u32(file, r->packet_bytes);
	for (uint32_t done = 0; done < padded;) { /* a packet may exceed the buffer */
		uint32_t n = padded - done < 4096 ? padded - done : 4096;
		uint32_t kept = r->kept_bytes - done < n ? r->kept_bytes - done : n;

		capture_get(c, at + done, capture_file_room(file, n), kept);
		done += n;
	}
	capture_file_option(file, PCAPNG_EPB_FLAGS, &flags, sizeof(flags));
	capture_file_u32(file, PCAPNG_OPT_END);
	capture_file_u32(file, total);
}

int capture_write(const struct capture *c, int fd, const char *ifname, int64_t wall_offset_ns)
{
	struct capture_file *file = malloc(sizeof(*file));

	if (!file)
		return -ENOMEM;
	file->fd = fd;
	file->error = 0;
	file->used = 0;
	capture_file_section(file);
	capture_file_interface(file, ifname, c->snap_len);
	for (uint64_t at = c->tail; at < c->head;) {
		struct capture_record r;

		capture_get(c, at, &r, sizeof(r));
		capture_file_packet(file, c, at + sizeof(r), &r, wall_offset_ns);
		at += capture_record_bytes(&r);
	}
	capture_file_flush(file);

	int error = file->error;

	free(file);
	return error;
}
