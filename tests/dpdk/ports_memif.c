/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ports_memif.c - memif ends that differ, and which peers are allowed.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ports.h"

#define OTHER_USER 65534u

static void with_id(char *out, size_t len, const char *device, unsigned id)
{
	const char *at = strstr(device, "id=0");

	snprintf(out, len, "%.*sid=%u%s", (int)(at - device), device, id, at + 4);
	out[strlen("net_memif")] = (char)(out[strlen("net_memif")] + 2 * (char)id);
}

/* A client with another id gets no link; a socket has one server. */
TEST(a_memif_id_is_one_pair)
{
	char server[256], client[256];
	struct end a, b, other;

	peers_begin();
	with_id(server, sizeof(server), peers_server, 1);
	with_id(client, sizeof(client), peers_client, 1);
	end_open(&a, peers_server, 0);
	end_open(&other, client, 0);
	end_open(&b, peers_client, 0);
	CHECK(end_until(&a, &b, 1000, 1514, 1));
	CHECK(end_wait_up(&other, false));
	CHECK_EQ(other.received, 0);
	CHECK_EQ(port_try(&(struct harp_dpdk_port *){ NULL }, server, 0), -EBUSY);
	CHECK(strstr(why, "its socket has a server"));
	CHECK(end_until(&b, &a, 1000, 1514, 1));
	end_close(&other);
	end_close(&b);
	end_close(&a);
	peers_end();
}

/* ---- ends that differ -------------------------------------------------------------------------- */

/* A client with a larger MTU sends the server packets of several frames. */
TEST(memif_ends_may_differ_in_mtu)
{
	struct end a, b;

	peers_begin();
	end_open(&a, peers_server, 1500);
	end_open(&b, peers_client, 9000);
	CHECK(end_until(&b, &a, 1000, 9014, 1));
	a.wrong = 0; /* they were sent in one piece */
	CHECK(end_until(&b, &a, 1000, 1514, 1));
	CHECK(end_until(&a, &b, 1000, 1514, 1));
	CHECK_EQ(a.wrong + b.wrong, 0);
	end_close(&b);
	end_close(&a);
	peers_end();
}

/* ---- allowed peers ----------------------------------------------------------------------------- */

static void folder_refused(const char *device, const char *folder)
{
	struct harp_dpdk_port *port;

	CHECK_EQ(port_try(&port, device, 0), -EPERM);
	CHECK(strstr(why, folder) && strstr(why, "only this user"));
}

/* At both ends only this user may open the socket's folder. Without socket=, HARP creates one. */
static void folders(const char *folder, const char *server, const char *client)
{
	CHECK_EQ(mkdir(folder, 0700), 0);
	CHECK_EQ(chown(folder, OTHER_USER, 0), 0);
	folder_refused(server, folder);
	folder_refused(client, folder);
	CHECK_EQ(chown(folder, 0, 0), 0);
	CHECK_EQ(chmod(folder, 0750), 0);
	folder_refused(server, folder);
	folder_refused(client, folder);
	CHECK_EQ(chmod(folder, 0701), 0);
	folder_refused(server, folder);
	CHECK_EQ(rmdir(folder), 0);
	CHECK_EQ(symlink("/tmp/elsewhere", folder), 0);
	folder_refused(server, folder);
	CHECK_EQ(unlink(folder), 0);
}

TEST(a_memif_folder_is_private)
{
	static const char folder[] = "/tmp/harp-memif-0";
	struct stat made;
	struct end a, b;

	if (geteuid() != 0 || unshare(CLONE_NEWNS) < 0)
		_exit(check_skip("a /tmp of its own: only root has one"));
	CHECK_EQ(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	CHECK_EQ(mount("none", "/tmp", "tmpfs", 0, "mode=1777"), 0);
	CHECK_EQ(mkdir("/tmp/elsewhere", 0700), 0);
	folders(folder, "net_memif0,role=server", "net_memif0");
	folders("/tmp/own", "net_memif0,role=server,socket=/tmp/own/m.sock",
		"net_memif0,socket=/tmp/own/m.sock");
	folder_refused("net_memif0,role=server,socket=/tmp/m.sock", "/tmp ");
	folder_refused("net_memif0,role=server,socket=/m.sock", "/ ");
	end_open(&a, "net_memif0,role=server", 0);
	CHECK_EQ(stat(folder, &made), 0);
	CHECK_EQ(made.st_mode & 07777, 0700);
	end_open(&b, "net_memif1", 0);
	CHECK(end_until(&a, &b, 1000, 1514, 1));
	end_close(&b);
	end_close(&a);
	CHECK_EQ(rmdir(folder), 0); /* nothing is left in it */
}
