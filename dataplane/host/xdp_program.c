/* SPDX-License-Identifier: Apache-2.0 */
/* xdp_program.c - see xdp_program.h. */
#include "host/xdp_program.h"

#include <errno.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>

#include "host/netlink.h"

static int program_answer(void *ctx, const struct nlmsghdr *message)
{
	const struct rtattr *attributes[IFLA_MAX + 1], *xdp[IFLA_XDP_MAX + 1];

	if (message->nlmsg_type != RTM_NEWLINK)
		return 0;
	netlink_attributes(message, sizeof(struct ifinfomsg), attributes, IFLA_MAX);
	if (!attributes[IFLA_XDP])
		return 0;
	netlink_attributes_in(RTA_DATA(attributes[IFLA_XDP]), RTA_PAYLOAD(attributes[IFLA_XDP]),
			      xdp, IFLA_XDP_MAX);
	if (xdp[IFLA_XDP_ATTACHED] && *(uint8_t *)RTA_DATA(xdp[IFLA_XDP_ATTACHED]))
		*(uint32_t *)ctx = netlink_u32(xdp[IFLA_XDP_PROG_ID], UINT32_MAX);
	return 0;
}

int xdp_program_read(uint32_t ifindex, uint32_t *id)
{
	struct netlink_message message;
	struct ifinfomsg *body;
	struct netlink nl;
	int rc = netlink_open(&nl, 0);

	*id = 0;
	if (rc)
		return rc;
	body = netlink_begin(&message, RTM_GETLINK, 0, sizeof(*body));
	body->ifi_index = (int)ifindex;
	rc = netlink_call(&nl, &message, program_answer, id);
	netlink_close(&nl);
	return rc;
}
