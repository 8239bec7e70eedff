/* SPDX-License-Identifier: Apache-2.0 */
/* sigpipe.c - suppresses SIGPIPE from drivers: virtio_user writes to a closed peer without
 * MSG_NOSIGNAL. */
#include <signal.h>
#include <time.h>

#include "dpdk/port.h"

static sigset_t sigpipe_only(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGPIPE);
	return set;
}

void sigpipe_block(struct sigpipe *was)
{
	const sigset_t only = sigpipe_only();
	sigset_t pending;

	sigpending(&pending);
	was->pending = sigismember(&pending, SIGPIPE) == 1;
	pthread_sigmask(SIG_BLOCK, &only, &was->mask);
}

void sigpipe_restore(const struct sigpipe *was)
{
	const sigset_t only = sigpipe_only();
	const struct timespec now = { 0 };

	if (!was->pending) /* otherwise the signal was pending before the driver's call */
		sigtimedwait(&only, NULL, &now);
	pthread_sigmask(SIG_SETMASK, &was->mask, NULL);
}
