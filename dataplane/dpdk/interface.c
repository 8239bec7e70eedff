/* SPDX-License-Identifier: Apache-2.0 */
/* interface.c - checks the MTU of the kernel interface behind a virtual device. */
#include <errno.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dpdk/port.h"

/* Without this check, drivers would send packets that the kernel silently drops. */
static int interface_compare(const struct dpdk_port *port, int fd, struct ifreq *request,
			     const struct why *why)
{
	const int mtu = (int)port->mtu_bytes;

	if (ioctl(fd, SIOCGIFMTU, request) < 0)
		return 0; /* the interface was removed; the link state reports that */
	if (request->ifr_mtu >= mtu && !(port->traits & DRIVER_CREATES_LINK))
		return 0;
	if (!(port->traits & DRIVER_CREATES_LINK))
		return why_fail(why, -EINVAL,
				"MTU %d exceeds the interface's MTU of %d; ip link set %s "
				"mtu %d",
				mtu, request->ifr_mtu, request->ifr_name, mtu);
	request->ifr_mtu = mtu;
	if (ioctl(fd, SIOCSIFMTU, request) == 0)
		return 0;
	return why_fail(why, -errno, "setting MTU %d of its interface %s: %s", mtu,
			request->ifr_name, strerror(errno));
}

int interface_mtu(const struct dpdk_port *port, const struct why *why)
{
	struct ifreq request = { 0 };
	int fd, err;

	if (!(port->traits & (DRIVER_KERNEL | DRIVER_CREATES_LINK)) ||
	    !if_indextoname(port->info.if_index, request.ifr_name))
		return 0;
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return why_fail(why, -errno, "no socket: %s", strerror(errno));
	err = interface_compare(port, fd, &request, why);
	close(fd);
	return err;
}
