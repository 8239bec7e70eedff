/* SPDX-License-Identifier: Apache-2.0 */
/* memfd.c - see memfd.h. */
#include "base/memfd.h"

#include <errno.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* Beyond RLIMIT_FSIZE (ulimit -f), ftruncate() would end the application by SIGXFSZ. */
static int memfd_resize(int fd, size_t bytes)
{
	struct rlimit limit;

	if (!getrlimit(RLIMIT_FSIZE, &limit) && bytes > limit.rlim_cur)
		return -EFBIG;
	return ftruncate(fd, (off_t)bytes) ? -errno : 0;
}

int memfd_sealed(const char *name, unsigned flags, size_t bytes)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags), rc;

	if (fd < 0)
		return -errno;
	rc = memfd_resize(fd, bytes);
	if (!rc && fcntl(fd, F_ADD_SEALS, MEMFD_SEALS))
		rc = -errno;
	if (!rc)
		return fd;
	close(fd);
	return rc;
}
