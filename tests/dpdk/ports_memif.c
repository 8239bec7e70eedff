/* SPDX-License-Identifier: Apache-2.0 */
/* ports_memif.c - memif: ids, ends with different MTUs, and access to the socket's folder. */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ports.h"

#define OTHER_USER 65534u

/* Copies a device with another id, and a name that no other device has. */
static void set_id(char *out, size_t len, const char *device, unsigned id)
{
	const char *id_arg = strstr(device, "id=0");

	snprintf(out, len, "%.*sid=%u%s", (int)(id_arg - device), device, id, id_arg + 4);
	out[strlen("net_memif")] = (char)(out[strlen("net_memif")] + 2 * (char)id);
}

/* A client with another id gets no link. A socket has one server. */
TEST(a_memif_id_connects_one_pair)
{
	char server[256], client[256];
	struct end a, b, unlinked;

	peers_begin();
	set_id(server, sizeof(server), peers_server, 1);
	set_id(client, sizeof(client), peers_client, 1);
	end_open(&a, peers_server, 0);
	end_open(&unlinked, client, 0);
	end_open(&b, peers_client, 0);
	CHECK(end_transfer(&a, &b, 1000, 1514, 1));
	CHECK(end_wait_up(&unlinked, false));
	CHECK_EQ(unlinked.received, 0);
	CHECK_EQ(port_try(&(struct harp_dpdk_port *){ NULL }, server, 0), -EBUSY);
	CHECK(strstr(why, "its socket has a server"));
	CHECK(end_transfer(&b, &a, 1000, 1514, 1));
	end_close(&unlinked);
	end_close(&b);
	end_close(&a);
	peers_end();
}

/* ---- different MTUs -------------------------------------------------------------------------- */

/* A client with a larger MTU sends packets that the server receives in several frames. */
TEST(memif_ends_may_differ_in_mtu)
{
	struct end a, b;

	peers_begin();
	end_open(&a, peers_server, 1500);
	end_open(&b, peers_client, 9000);
	CHECK(end_transfer(&b, &a, 1000, 9014, 1));
	a.errors = 0; /* ignore those of the large packets */
	CHECK(end_transfer(&b, &a, 1000, 1514, 1));
	CHECK(end_transfer(&a, &b, 1000, 1514, 1));
	CHECK_EQ(a.errors + b.errors, 0);
	end_close(&b);
	end_close(&a);
	peers_end();
}

/* ---- access ---------------------------------------------------------------------------------- */

static void check_refused(const char *device, const char *folder)
{
	struct harp_dpdk_port *port;

	CHECK_EQ(port_try(&port, device, 0), -EPERM);
	CHECK(strstr(why, folder) && strstr(why, "only this user"));
}

/* Both ends refuse a folder that other users can access, and a symbolic link. */
static void check_folder(const char *folder, const char *server, const char *client)
{
	CHECK_EQ(mkdir(folder, 0700), 0);
	CHECK_EQ(chown(folder, OTHER_USER, 0), 0);
	check_refused(server, folder);
	check_refused(client, folder);
	CHECK_EQ(chown(folder, 0, 0), 0);
	CHECK_EQ(chmod(folder, 0750), 0);
	check_refused(server, folder);
	check_refused(client, folder);
	CHECK_EQ(chmod(folder, 0701), 0);
	check_refused(server, folder);
	CHECK_EQ(rmdir(folder), 0);
	CHECK_EQ(symlink("/tmp/elsewhere", folder), 0);
	check_refused(server, folder);
	CHECK_EQ(unlink(folder), 0);
}

TEST(a_memif_folder_is_private)
{
	static const char folder[] = "/tmp/harp-memif-0";
	struct stat status;
	struct end a, b;

	if (geteuid() != 0 || unshare(CLONE_NEWNS) < 0)
		_exit(check_skip("a private /tmp needs root"));
	CHECK_EQ(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	CHECK_EQ(mount("none", "/tmp", "tmpfs", 0, "mode=1777"), 0);
	CHECK_EQ(mkdir("/tmp/elsewhere", 0700), 0);
	check_folder(folder, "net_memif0,role=server", "net_memif0");
	check_folder("/tmp/own", "net_memif0,role=server,socket=/tmp/own/m.sock",
		     "net_memif0,socket=/tmp/own/m.sock");
	check_refused("net_memif0,role=server,socket=/tmp/m.sock", "/tmp ");
	check_refused("net_memif0,role=server,socket=/m.sock", "/ ");
	/* Without socket=, HARP creates the folder. */
	end_open(&a, "net_memif0,role=server", 0);
	CHECK_EQ(stat(folder, &status), 0);
	CHECK_EQ(status.st_mode & 07777, 0700);
	end_open(&b, "net_memif1", 0);
	CHECK(end_transfer(&a, &b, 1000, 1514, 1));
	end_close(&b);
	end_close(&a);
	CHECK_EQ(rmdir(folder), 0); /* it is empty */
}
