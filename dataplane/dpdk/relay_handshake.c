/* SPDX-License-Identifier: Apache-2.0 */
/*
 * relay_handshake.c - what a memif's peer may say, and when.
 *
 * The driver of DPDK 22.11 believes a peer: that messages come in their order and once, that a region is as long as it is said
 * to be, and that a ring lies in it. Here that is made sure of, before it hears of them: INIT, regions, their rings in
 * order, CONNECT, and nothing after that but a goodbye; of a server HELLO, ACKs and one CONNECTED.
 *
 * The buffers that the rings of region 0 have at that time are looked at, too, which tells ends of different MTUs. What a peer writes there later nobody checks:
 * docs/security.md.
 */
#include "dpdk/relay_handshake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Where in messages, and in memory: sizeof(memif_ring_t) and sizeof(memif_desc_t), which are the protocol's. */
#define REGION_INDEX_AT 2
#define REGION_SIZE_AT 4
#define RING_FLAGS_AT 2
#define RING_FLAG_TO_SERVER 1
#define RING_INDEX_AT 4
#define RING_REGION_AT 6
#define RING_OFFSET_AT 8
#define RING_LOG2_AT 12
#define RING_LOG2_MAX 14u
#define RING_HEADER_BYTES 128u
#define RING_DESC_BYTES 16u
#define RING_READ 64u /* at a time */

static uint16_t message_u16(const struct relay_message *message, size_t at)
{
	uint16_t value;

	memcpy(&value, message->bytes + at, sizeof(value));
	return value;
}

/* Mapped whole, and read: a page that the file does not have ends the process. */
static const char *handshake_region(struct handshake *said, const struct relay_message *message)
{
	int fd = relay_message_fd(message);
	struct stat file;
	uint64_t bytes;

	memcpy(&bytes, message->bytes + REGION_SIZE_AT, sizeof(bytes));
	if (said->regions == HANDSHAKE_REGIONS_MAX ||
	    message_u16(message, REGION_INDEX_AT) != said->regions)
		return "regions come in order, 256 at most";
	if (fd < 0 || fstat(fd, &file) < 0 || !S_ISREG(file.st_mode))
		return "a region is a file of memory";
	if (bytes == 0 || file.st_size < 0 || bytes > (uint64_t)file.st_size)
		return "a region's file is shorter than the region";
	if (said->regions == 0)
		said->memory = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	said->region_bytes[said->regions++] = bytes;
	return NULL;
}

/* The driver reads and writes there what wakes the peer, in the thread that polls. */
static bool handshake_is_event(int fd)
{
	char path[32], is[32] = "";
	int flags;

	if (fd < 0)
		return false;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (readlink(path, is, sizeof(is) - 1) < 0 || strcmp(is, "anon_inode:[eventfd]") != 0)
		return false;
	flags = fcntl(fd, F_GETFL);
	return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

/*
 * The buffers as they are when the ring is announced, which the driver believes all the same whenever it uses one: in their
 * regions; and those that it writes to are long enough for a packet, since it does not ask. Length 0: of a ring that its owner fills later.
 */
static const char *handshake_buffers(const struct handshake *said, uint32_t offset, unsigned log2,
				     uint32_t packet_bytes)
{
	struct {
		uint16_t flags, region;
		uint32_t length, offset, metadata;
	} desc[RING_READ];
	uint32_t slots = 1u << log2;

	for (uint32_t slot = 0; slot < slots; slot += RING_READ) {
		uint32_t count = slots - slot < RING_READ ? slots - slot : RING_READ;

		if (pread(said->memory, desc, count * sizeof(desc[0]),
			  (off_t)offset + RING_HEADER_BYTES + (off_t)slot * RING_DESC_BYTES) !=
		    (ssize_t)(count * sizeof(desc[0])))
			return "a ring can't be read";
		for (uint32_t i = 0; i < count; i++) {
			if (desc[i].region >= said->regions ||
			    (uint64_t)desc[i].offset + desc[i].length >
				    said->region_bytes[desc[i].region])
				return "a buffer does not lie in its region";
			if (desc[i].length > 0 && desc[i].length < packet_bytes)
				return "its buffers are shorter than this end's packets: say bsize=, or "
				       "the same MTU";
		}
	}
	return NULL;
}

static const char *handshake_ring(struct handshake *said, const struct relay_message *message,
				  uint32_t packet_bytes)
{
	bool to_server = message_u16(message, RING_FLAGS_AT) & RING_FLAG_TO_SERVER;
	uint16_t region = message_u16(message, RING_REGION_AT);
	unsigned log2 = message->bytes[RING_LOG2_AT];
	const char *wrong = NULL;
	uint32_t offset;

	memcpy(&offset, message->bytes + RING_OFFSET_AT, sizeof(offset));
	if (message_u16(message, RING_INDEX_AT) != said->rings[to_server])
		return "rings come in order";
	if (region >= said->regions)
		return "a ring's region is not there";
	if (log2 > RING_LOG2_MAX)
		return "a ring has 16384 slots at most";
	if (offset % sizeof(uint32_t) != 0 ||
	    (uint64_t)offset + RING_HEADER_BYTES + ((uint64_t)RING_DESC_BYTES << log2) >
		    said->region_bytes[region])
		return "a ring does not lie in its region";
	if (!handshake_is_event(relay_message_fd(message)))
		return "a ring's descriptor is an eventfd";
	if (region == 0)
		wrong = handshake_buffers(said, offset, log2, to_server ? 0 : packet_bytes);
	if (wrong)
		return wrong;
	said->rings[to_server]++;
	return NULL;
}

/* A queue that has no ring the driver polls all the same: another queue's ring, from a second thread. */
static const char *handshake_rings(const struct handshake *said, uint32_t queues)
{
	if (said->rings[0] == 0 || said->rings[1] == 0)
		return "a ring for each direction comes before CONNECT";
	if (said->rings[0] < queues || said->rings[1] < queues)
		return "it has fewer queues than this end: say queues= alike at both";
	return NULL;
}

void handshake_end(struct handshake *said)
{
	if (said->memory >= 0)
		close(said->memory);
	said->memory = -1;
}

const char *handshake_client(struct handshake *said, const struct relay_message *message,
			     const struct handshake_wish *wish)
{
	uint16_t type = relay_message_type(message);
	const char *wrong;

	if (message->len != sizeof(message->bytes))
		return "a message has 128 bytes";
	if (!said->greeted) {
		said->greeted = type == MEMIF_INIT;
		return said->greeted ? NULL : "a client begins with INIT";
	}
	if (type == MEMIF_ACK || type == MEMIF_DISCONNECT)
		return NULL;
	if (said->connected)
		return "what is connected is not changed";
	switch (type) {
	case MEMIF_ADD_REGION:
		return handshake_region(said, message);
	case MEMIF_ADD_RING:
		return handshake_ring(said, message, wish->packet_bytes);
	case MEMIF_CONNECT:
		handshake_end(said);
		wrong = handshake_rings(said, wish->queues);
		said->connected = !wrong;
		return wrong;
	default:
		return "no client says that";
	}
}

const char *handshake_server(struct handshake *said, const struct relay_message *message)
{
	uint16_t type = relay_message_type(message);

	if (message->len != sizeof(message->bytes))
		return "a message has 128 bytes";
	if (type == MEMIF_DISCONNECT)
		return NULL;
	if (!said->greeted) {
		said->greeted = type == MEMIF_HELLO;
		return said->greeted ? NULL : "a server begins with HELLO";
	}
	if (type == MEMIF_ACK)
		return NULL;
	if (type != MEMIF_CONNECTED || said->connected)
		return "no server says that";
	said->connected = true;
	return NULL;
}
