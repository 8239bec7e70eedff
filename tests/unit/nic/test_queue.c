/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_queue.c - an AF_XDP queue is created without mapping its memory. It is adopted only if the
 * kernel confirms its description. The test needs root for a network namespace, whose loopback
 * interface has the queue.
 */
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "check.h"
#include "fds.h"
#include "nic/af_xdp.h"

static char why[320];

static int create(struct harp_queue *queue, uint32_t huge_pages)
{
	const struct harp_af_xdp_options opt = {
		.size = sizeof(opt),
		.ifname = "lo",
		.frame_count = 1024,
		.ring_size = 512,
		.copy_mode = 1,
		.huge_pages = huge_pages,
		.bind_retry_ms = 60000, /* the kernel frees a queue after a delay */
	};

	return harp_queue_make(queue, &opt, why, sizeof(why));
}

/* Adopts the queue and destroys the NIC. On an error, too, the queue's descriptors are closed. */
static int adopt(const struct harp_queue *queue)
{
	struct harp_nic *nic;
	int rc = harp_nic_af_xdp_adopt(&nic, queue, why, sizeof(why));

	CHECK((rc == 0) == (nic != NULL));
	harp_nic_destroy(nic);
	return rc;
}

static bool is_mapped(const char *name)
{
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "re");
	bool is_present = false;

	while (maps && fgets(line, sizeof(line), maps))
		is_present |= strstr(line, name) != NULL;
	if (maps)
		fclose(maps);
	return is_present;
}

TEST(a_queue_is_created_without_a_mapping)
{
	struct harp_queue queue;
	unsigned before = fds_open();

	CHECK_EQ(create(&queue, 1), 0);
	CHECK_EQ(fds_open(), before + 2);
	CHECK(fcntl(queue.xsk_fd, F_GETFD) & FD_CLOEXEC);
	CHECK(fcntl(queue.frames_fd, F_GETFD) & FD_CLOEXEC);
	CHECK_EQ(fcntl(queue.frames_fd, F_GET_SEALS), MEMFD_SEALS);
	CHECK_EQ(ftruncate(queue.frames_fd, 4096), -1);
	CHECK_EQ(errno, EPERM);
	/* A mapped ring would keep the queue alive after its user has died. */
	CHECK(!is_mapped("harp-frames"));
	CHECK(!is_mapped("[xsk]") && !is_mapped("AF_XDP") && !is_mapped("socket:"));
	CHECK_STR(queue.ifname, "lo");
	CHECK_EQ(queue.mtu_bytes, 1500);
	CHECK_EQ(queue.frame_size, 2048);
	CHECK_EQ(queue.frame_count, 1024);
	CHECK_EQ(queue.ring_size, 512);
	CHECK_EQ(queue.zero_copy, 0);
	CHECK_EQ(adopt(&queue), 0);
	CHECK_EQ(fds_open(), before);
	CHECK(!is_mapped("harp-frames"));
	/* The queue can be created again. */
	CHECK_EQ(create(&queue, 1), 0);
	CHECK_EQ(adopt(&queue), 0);
	CHECK_EQ(fds_open(), before);
}

TEST(an_invalid_queue_is_refused)
{
	struct harp_queue queue;
	struct harp_af_xdp_options opt = { .size = sizeof(opt), .ifname = "lo", .queue = 9 };
	unsigned before = fds_open();

	CHECK(harp_queue_make(&queue, &opt, why, sizeof(why)) < 0);
	CHECK_EQ(queue.xsk_fd, -1);
	CHECK_EQ(queue.frames_fd, -1);
	CHECK(!strncmp(why, "lo queue 9: ", 12));
	CHECK_EQ(fds_open(), before);
	CHECK_EQ(harp_queue_make(&queue, NULL, why, sizeof(why)), -EINVAL);
}

/* Huge pages are sealed, too. Without free ones, huge_pages = 2 fails. */
TEST(huge_pages_are_sealed_too)
{
	struct harp_queue queue;
	unsigned before = fds_open();
	int rc = create(&queue, 2);

	if (rc) {
		CHECK_EQ(rc, -ENOMEM);
		CHECK(strstr(why, "vm.nr_hugepages") != NULL);
		CHECK_EQ(create(&queue, 0), 0);
	}
	CHECK_EQ(fcntl(queue.frames_fd, F_GET_SEALS), MEMFD_SEALS);
	CHECK_EQ(adopt(&queue), 0);
	CHECK_EQ(fds_open(), before);
}

/* Adopting a queue whose description has `change` fails with this error and reason. */
#define REFUSED(change, error, reason)                                                             \
	do {                                                                                       \
		struct harp_queue queue;                                                           \
		unsigned before = fds_open();                                                      \
		CHECK_EQ(create(&queue, 1), 0);                                                    \
		change;                                                                            \
		CHECK_EQ(adopt(&queue), error);                                                    \
		if (!strstr(why, reason) || strncmp(why, "lo queue 0: ", 12)) {                    \
			fprintf(stderr, "%d: \"%s\" does not contain \"%s\"\n", __LINE__, why,     \
				reason);                                                           \
			check_failed();                                                            \
		}                                                                                  \
		CHECK_EQ(fds_open(), before);                                                      \
	} while (0)

static void replace_fd(int *fd, int new_fd)
{
	close(*fd);
	*fd = new_fd;
}

static int create_memfd(size_t bytes, int seals)
{
	int fd = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	CHECK_EQ(ftruncate(fd, (off_t)bytes), 0);
	CHECK_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

TEST(invalid_numbers_are_refused)
{
	REFUSED(queue.frame_size = 1000, -EPROTO, "frames of 1000 bytes");
	REFUSED(queue.frame_size = 0, -EPROTO, "frames of 0 bytes");
	REFUSED(queue.frame_count = 0, -EPROTO, "0 frames");
	REFUSED(queue.frame_count = 0x80000000u, -EPROTO, "2147483648 frames");
	REFUSED(queue.frame_count = 4096, -EPROTO, "its memory has 2097152 bytes");
	REFUSED(queue.ring_size = 0, -EPROTO, "rings of 0");
	REFUSED(queue.ring_size = 500, -EPROTO, "rings of 500");
	REFUSED(queue.ring_size = 1024, -EPROTO, "has no rings of 1024");
	REFUSED(queue.ring_size = 65536, -EPROTO, "has no rings of 65536");
	REFUSED(queue.ring_size = 256, -EPROTO, "rings are larger than 256");
	REFUSED(queue.mtu_bytes = 0, -EPROTO, "MTU 0");
	REFUSED(queue.mtu_bytes = 1u << 20, -EPROTO, "MTU 1048576");
	REFUSED(queue.tx_frags_max = 0, -EPROTO, "packets of 0 fragments");
	REFUSED(queue.tx_frags_max = 100000, -EPROTO, "packets of 100000 fragments");
	REFUSED(queue.features |= 0x4, -EPROTO, "features 0x");
}

TEST(invalid_descriptors_are_refused)
{
	const size_t bytes = 2u << 20;

	REFUSED(replace_fd(&queue.xsk_fd, socket(AF_INET, SOCK_DGRAM, 0)), -EBADF,
		"not an AF_XDP socket");
	REFUSED(replace_fd(&queue.xsk_fd, create_memfd(4096, 0)), -EBADF, "not an AF_XDP socket");
	REFUSED(replace_fd(&queue.xsk_fd, -1), -EBADF, "not an AF_XDP socket");
	REFUSED(replace_fd(&queue.xsk_fd, socket(AF_XDP, SOCK_RAW, 0)), -EBADF, "not bound");
	REFUSED(replace_fd(&queue.frames_fd, -1), -EBADF, "not a memfd");
	REFUSED(replace_fd(&queue.frames_fd, open("/dev/null", O_RDWR)), -EBADF, "not a memfd");
	REFUSED(replace_fd(&queue.frames_fd, create_memfd(bytes, 0)), -EPERM, "not sealed");
	REFUSED(replace_fd(&queue.frames_fd, create_memfd(bytes, F_SEAL_GROW | F_SEAL_SEAL)),
		-EPERM, "not sealed");
	REFUSED(replace_fd(&queue.frames_fd, create_memfd(bytes / 2, MEMFD_SEALS)), -EPROTO,
		"its memory has 1048576 bytes");
	REFUSED(replace_fd(&queue.frames_fd, create_memfd(bytes, MEMFD_SEALS | F_SEAL_WRITE)),
		-EPERM, "mapping its 2097152 bytes");
	REFUSED(int other = dup(queue.frames_fd); replace_fd(&queue.frames_fd, queue.xsk_fd);
		queue.xsk_fd = other, -EBADF, "not an AF_XDP socket");
}

/* A second owner would start in the middle of the rings. */
TEST(a_queue_in_use_is_not_adopted)
{
	struct harp_queue first, second;
	struct harp_nic *nic;
	uint64_t frame = 0;

	CHECK_EQ(create(&first, 1), 0);
	second = first;
	second.xsk_fd = dup(first.xsk_fd);
	second.frames_fd = dup(first.frames_fd);
	CHECK_EQ(harp_nic_af_xdp_adopt(&nic, &first, why, sizeof(why)), 0);
	CHECK_EQ(nic->ops->fill(nic, &frame, 1), 1);
	CHECK_EQ(adopt(&second), -EPROTO);
	CHECK(strstr(why, "used before") != NULL);
	harp_nic_destroy(nic);
}

TEST(invalid_arguments_are_refused)
{
	struct harp_nic *nic;
	struct harp_queue queue = { .size = 8, .xsk_fd = -1, .frames_fd = -1 };

	CHECK_EQ(harp_nic_af_xdp_adopt(&nic, NULL, why, sizeof(why)), -EINVAL);
	CHECK_EQ(harp_nic_af_xdp_adopt(&nic, &queue, NULL, 0), -EINVAL);
	queue.size = sizeof(queue);
	CHECK_EQ(harp_nic_af_xdp_adopt(&nic, &queue, why, sizeof(why)), -EPROTO);
}

/* Adopting needs neither privileges nor locked memory: a child drops both. */
TEST(adopting_needs_no_privilege)
{
	const struct rlimit limit = { 65536, 65536 };
	struct harp_queue queue;
	int status = -1;
	pid_t child;

	CHECK_EQ(create(&queue, 1), 0);
	child = fork();
	if (child == 0) {
		int rc = setrlimit(RLIMIT_MEMLOCK, &limit) || setresgid(65534, 65534, 65534) ||
			 setresuid(65534, 65534, 65534);

		if (!rc && socket(AF_XDP, SOCK_RAW, 0) >= 0)
			rc = 2;
		_exit(rc ? rc : adopt(&queue) ? 3 : 0);
	}
	waitpid_of(child, &status);
	CHECK_EQ(status, 0);
	close(queue.xsk_fd);
	close(queue.frames_fd);
}

static int enter_namespace(void)
{
	struct ifreq request = { .ifr_name = "lo" };
	int fd, rc;

	if (unshare(CLONE_NEWNET) < 0)
		return -1;
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	request.ifr_mtu = 1500;
	rc = ioctl(fd, SIOCSIFMTU, &request);
	request.ifr_flags = IFF_UP;
	rc = rc ? rc : ioctl(fd, SIOCSIFFLAGS, &request);
	close(fd);
	return rc;
}

int main(void)
{
	if (enter_namespace() < 0)
		return check_skip("creating a network namespace needs root");
	check_run();
	return check_done();
}
