/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - device memory, which the host must not access, and pinned host memory.
 *
 * Device addresses are in a reserved range without access rights. The emulated GPU (copies and
 * kernels) accesses the memory in another mapping (memory_view). Code that treats device memory as
 * host memory, for example a net plugin, gets SIGSEGV, as with a real GPU.
 */
#include "emulation.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MEMORY_DEVICE_START 0x200000000000ul

enum { MEMORY_PAGE_BYTES = 4096, MEMORY_POISON = 0xa5 };

struct memory_entry {
	struct memory_block block;
	bool is_used;
	struct memory_entry *next;
};

static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static struct memory_entry *memory_entries; /* under memory_lock */
static size_t memory_device_used_bytes;     /* under memory_lock */
static pthread_once_t memory_once = PTHREAD_ONCE_INIT;
static char *memory_device_view; /* Writer: memory_open(), once */

static void memory_open(void)
{
	void *start = (void *)MEMORY_DEVICE_START, *at;
	int fd = memfd_create("emulated-gpu", MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, MEMORY_DEVICE_BYTES))
		emulation_fail("device memory: %s", strerror(errno));
	at = mmap(start, MEMORY_DEVICE_BYTES, PROT_NONE,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
	if (at != start)
		emulation_fail("device memory at %p: %s", start, strerror(errno));
	memory_device_view = mmap(NULL, MEMORY_DEVICE_BYTES, PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (memory_device_view == MAP_FAILED)
		emulation_fail("device memory: %s", strerror(errno));
	close(fd);
}

bool memory_is_device(const void *address)
{
	return (uintptr_t)address - MEMORY_DEVICE_START < MEMORY_DEVICE_BYTES;
}

void *memory_view(const void *address)
{
	if (memory_is_device(address))
		return memory_device_view + ((uintptr_t)address - MEMORY_DEVICE_START);
	return (void *)(uintptr_t)address;
}

/* memory_lock held. Reuses a freed device block of the same size. */
static struct memory_entry *memory_device_entry(size_t bytes)
{
	struct memory_entry *entry;

	for (entry = memory_entries; entry; entry = entry->next)
		if (!entry->is_used && entry->block.bytes == bytes)
			return entry;
	if (bytes > MEMORY_DEVICE_BYTES - memory_device_used_bytes)
		return NULL;
	entry = emulation_alloc(sizeof(*entry));
	entry->block = (struct memory_block){
		.start = (char *)MEMORY_DEVICE_START + memory_device_used_bytes,
		.bytes = bytes,
		.kind = MEMORY_DEVICE,
	};
	memory_device_used_bytes += bytes;
	entry->next = memory_entries;
	memory_entries = entry;
	return entry;
}

/* memory_lock held. */
static struct memory_entry *memory_pinned_entry(size_t bytes)
{
	struct memory_entry *entry = emulation_alloc(sizeof(*entry));
	void *start = aligned_alloc(MEMORY_PAGE_BYTES, bytes);

	if (!start)
		emulation_fail("out of memory: %zu bytes of pinned memory", bytes);
	entry->block = (struct memory_block){ start, bytes, MEMORY_PINNED };
	entry->next = memory_entries;
	memory_entries = entry;
	return entry;
}

void *memory_alloc(enum memory_kind kind, size_t bytes)
{
	struct memory_entry *entry;

	if (bytes > MEMORY_DEVICE_BYTES)
		return NULL;
	bytes = bytes ? (bytes + MEMORY_PAGE_BYTES - 1) & ~(size_t)(MEMORY_PAGE_BYTES - 1)
		      : MEMORY_PAGE_BYTES;
	pthread_once(&memory_once, memory_open);
	pthread_mutex_lock(&memory_lock);
	entry = kind == MEMORY_DEVICE ? memory_device_entry(bytes) : memory_pinned_entry(bytes);
	if (entry)
		entry->is_used = true;
	pthread_mutex_unlock(&memory_lock);
	if (!entry)
		return NULL;
	/* Poison the memory: programs must not rely on zeros. */
	memset(memory_view(entry->block.start), MEMORY_POISON, bytes);
	return entry->block.start;
}

void memory_free(enum memory_kind kind, void *address)
{
	struct memory_entry **link, *entry;

	if (!address)
		return;
	pthread_mutex_lock(&memory_lock);
	for (link = &memory_entries; (entry = *link); link = &entry->next)
		if (entry->is_used && entry->block.start == address && entry->block.kind == kind)
			break;
	if (!entry)
		emulation_fail("%p is freed but is not a block of this kind", address);
	entry->is_used = false;
	if (kind == MEMORY_DEVICE) {
		madvise(memory_view(address), entry->block.bytes, MADV_REMOVE);
	} else {
		*link = entry->next;
		free(address);
		free(entry);
	}
	pthread_mutex_unlock(&memory_lock);
}

bool memory_find(const void *address, struct memory_block *block)
{
	struct memory_entry *entry;
	const char *at = address;

	pthread_mutex_lock(&memory_lock);
	for (entry = memory_entries; entry; entry = entry->next)
		if (entry->is_used && at >= entry->block.start &&
		    at < entry->block.start + entry->block.bytes)
			break;
	if (entry)
		*block = entry->block;
	pthread_mutex_unlock(&memory_lock);
	return entry != NULL;
}
