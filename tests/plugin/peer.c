/* SPDX-License-Identifier: Apache-2.0 */
/* peer.c - see peer.h. */
#include "peer.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

uint8_t *map(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	REQUIRE(memory != MAP_FAILED);
	return memory;
}

void peer_notify(int fd)
{
	REQUIRE(write(fd, "!", 1) == 1);
}

void peer_wait(int fd)
{
	char byte;

	REQUIRE(read(fd, &byte, 1) == 1);
}

struct peer peer_start(void (*child)(const char *plugin, int version, int fd), enum host child_host,
		       const char *plugin, int version)
{
	struct peer peer;
	int fds[2];

	REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
	peer.pid = fork();
	REQUIRE(peer.pid >= 0);
	this_host = child_host == HOST_SENDER ? HOST_RECEIVER : HOST_SENDER;
	if (peer.pid == 0) {
		this_host = child_host;
		close(fds[0]);
		child(plugin, version, fds[1]);
		exit(0);
	}
	close(fds[1]);
	peer.fd = fds[0];
	return peer;
}

void peer_end(struct peer *peer, int signal)
{
	int status;

	if (signal)
		kill(peer->pid, signal);
	REQUIRE(waitpid(peer->pid, &status, 0) == peer->pid);
	REQUIRE(signal ? WIFSIGNALED(status) : status == 0);
	close(peer->fd);
}

bool peer_is_gone(const struct peer *peer, int wait_ms)
{
	struct pollfd end = { .fd = peer->fd, .events = POLLIN };

	return poll(&end, 1, wait_ms) > 0;
}

void *peer_accept(struct net *net, const struct peer *peer, void **listen)
{
	char handle[NCCL_HANDLE_BYTES];

	OK(net_listen(net, 0, handle, listen));
	REQUIRE(write(peer->fd, handle, sizeof(handle)) == sizeof(handle));
	return end_accept(net, *listen);
}

void *child_connect(struct net *net, int fd)
{
	char handle[NCCL_HANDLE_BYTES];

	REQUIRE(recv(fd, handle, sizeof(handle), MSG_WAITALL) == sizeof(handle));
	return end_connect(net, handle);
}
