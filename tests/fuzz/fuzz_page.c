/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_page.c - a statistics page that a job may have corrupted: read within its bounds, or
 * rejected with one line of text.
 *
 * Input: a byte of options (1: magic and version are made valid; 2: the page is longer than the
 * written bytes), the size of an item, the index of the first item, the number of items, and the
 * page.
 */
#include "fuzz.h"
#include "harp_page.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define LONGER_BYTES 16384
#define ITEM_BYTES_MAX 1200u
#define ITEMS_MAX 100u
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static int make_page(struct fuzz_input *in, uint32_t choices)
{
	const uint64_t magic = HARP_PAGE_MAGIC;
	const uint32_t version = HARP_PAGE_VERSION;
	int fd = memfd_create("fuzz-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	CHECK(fd >= 0);
	CHECK(write(fd, in->at, in->left) == (ssize_t)in->left);
	if (choices & 1) {
		CHECK(pwrite(fd, &magic, sizeof(magic), 0) == sizeof(magic));
		CHECK(pwrite(fd, &version, sizeof(version), 8) == sizeof(version));
	}
	if (choices & 2)
		CHECK(ftruncate(fd, LONGER_BYTES) == 0);
	CHECK(fcntl(fd, F_ADD_SEALS, SEALS) == 0);
	return fd;
}

static void read_part(int fd, enum harp_page_part part, uint32_t item_bytes, uint32_t first,
		      uint32_t max, bool is_valid)
{
	/* Exact size: ASan reports a write behind its end. */
	uint8_t *items = malloc((size_t)item_bytes * max);
	int rc = harp_page_read(fd, part, first, items, item_bytes, max);

	CHECK(rc <= (int)max);
	/* A valid page stays valid, because nothing writes to it. */
	CHECK(is_valid ? rc >= 0 || rc == -EBUSY : rc < 0);
	free(items);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	struct fuzz_input in = { bytes, len };
	uint32_t choices = fuzz_u8(&in), item_bytes = 1 + fuzz_u16(&in) % ITEM_BYTES_MAX;
	uint32_t first = fuzz_u8(&in), max = 1 + fuzz_u8(&in) % ITEMS_MAX;
	char why[256] = "";
	int fd = make_page(&in, choices), rc;

	rc = harp_page_check(fd, why, sizeof(why));
	CHECK(rc <= 0 && (rc == 0 || why[0]) && !strchr(why, '\n'));
	for (unsigned part = 0; part < HARP_PAGE_PARTS; part++)
		read_part(fd, (enum harp_page_part)part, item_bytes, first, max, rc == 0);
	close(fd);
	return 0;
}
