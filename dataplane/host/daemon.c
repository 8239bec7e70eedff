/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon.c - the job's side of the protocol with harpd (harp_lease.h).
 *
 * Each request has one answer within a bounded time. The listener may be another version of harpd,
 * or another program. So this code accepts an answer only if it is complete, has the right type and
 * serial, and contains the expected descriptors. Otherwise it closes the descriptors and ends the
 * connection. It sanitizes text before it logs it.
 */
#include "host/daemon.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/daemon_wire.h"

#define WAIT_HELLO_MS 3000u
/* harpd may have to create huge pages, or wait for a queue whose owner has just exited. */
#define WAIT_LEASE_MS 10000u
#define ERRNO_MAX 4095
#define FDS_ANY ~0u

struct harp_daemon {
	unsigned wait_ms; /* timeout of an answer; a lease may take longer */
	uint32_t serial;
	uint32_t device_count;
	struct harp_lease_device devices[HARP_LEASE_DEVICES_MAX];
	char *settings;
	char name[32];
	/* After a successful call: a message with a complete header of the right type and
	 * serial. */
	struct daemon_wire wire;
};

/* Turns text from outside into one terminated, printable line. */
static void daemon_clean(char *text, size_t size)
{
	size_t len = strnlen(text, size - 1);

	text[len] = '\0';
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
			text[i] = '?';
}

/* one request */

/* True if harpd refuses and closes the connection. */
static bool daemon_is_closing(const struct harp_lease_header *header)
{
	return header->type == HARP_LEASE_REFUSED && !header->serial;
}

/* Checks the answer's header: its type must be `type` or REFUSED. */
static int daemon_check_header(const struct harp_daemon *daemon, uint16_t type,
			       const struct why *why)
{
	const struct harp_lease_header *header = (const void *)daemon->wire.answer;

	if (daemon->wire.answer_bytes < sizeof(*header) || header->magic != HARP_LEASE_MAGIC ||
	    !header->version)
		return why_fail(why, -EPROTO, "the listener is not harpd");
	if (header->size != daemon->wire.answer_bytes)
		return why_fail(why, -EPROTO, "harpd's message has %zu bytes and states %u",
				daemon->wire.answer_bytes, header->size);
	if (header->serial != daemon->serial && !daemon_is_closing(header))
		return why_fail(why, -EPROTO, "harpd answers request %u instead of %u",
				header->serial, daemon->serial);
	if (header->type != type && header->type != HARP_LEASE_REFUSED)
		return why_fail(why, -EPROTO, "harpd answers with type %u instead of %u",
				header->type, type);
	return 0;
}

int daemon_refused(const void *message, size_t bytes, const struct why *why)
{
	struct harp_lease_refused refused;

	if (bytes < sizeof(refused))
		return why_fail(why, -EPROTO, "harpd's refusal has %zu bytes, not %zu", bytes,
				sizeof(refused));
	memcpy(&refused, message, sizeof(refused));
	daemon_clean(refused.why, sizeof(refused.why));
	if (refused.error <= 0 || refused.error > ERRNO_MAX)
		return why_fail(why, -EPROTO, "harpd refuses with error %d", refused.error);
	return why_fail(why, -refused.error, "harpd refuses: %s",
			refused.why[0] ? refused.why : strerror(refused.error));
}

static int daemon_no_answer(int rc, unsigned wait_ms, const struct why *why)
{
	switch (rc) {
	case -ETIMEDOUT:
		return why_fail(why, rc, "harpd does not answer within %u s; is it stopped?",
				wait_ms / 1000);
	case -ECONNRESET:
		return why_fail(why, rc,
				"harpd closed the connection without an answer; see its log");
	case -EMFILE:
		return why_fail(why, rc,
				"no free file descriptors for its answer; raise "
				"`ulimit -n`");
	case -EMSGSIZE:
		return why_fail(why, -EPROTO,
				"harpd's message is too long or has too many descriptors");
	default:
		return why_fail(why, rc, "request to harpd: %s", strerror(-rc));
	}
}

/* Sends a request and waits for an answer of answer_type with at least answer_bytes, which is then
 * in daemon->wire.answer. Its descriptors are in daemon->wire.fds: fd_count, or FDS_ANY number. */
static int daemon_call(struct harp_daemon *daemon, void *message, size_t bytes, uint16_t type,
		       uint16_t answer_type, size_t answer_bytes, unsigned fd_count,
		       const struct why *why)
{
	const struct harp_lease_header *answer = (const void *)daemon->wire.answer;
	struct harp_lease_header *header = message;
	unsigned wait_ms = type == HARP_LEASE_LEASE ? WAIT_LEASE_MS : daemon->wait_ms;
	int rc;

	if (daemon->wire.ended)
		return why_fail(why, -ENOTCONN, "the connection to harpd has ended");
	*header = (struct harp_lease_header){ .magic = HARP_LEASE_MAGIC,
					      .version = HARP_LEASE_VERSION,
					      .type = type,
					      .size = (uint32_t)bytes,
					      .serial = ++daemon->serial };
	rc = daemon_wire_exchange(&daemon->wire, message, bytes, wait_ms);
	if (rc)
		rc = daemon_no_answer(rc, wait_ms, why);
	else
		rc = daemon_check_header(daemon, answer_type, why);
	if (!rc && answer->type == HARP_LEASE_REFUSED) {
		daemon->wire.ended |= daemon_is_closing(answer);
		daemon_wire_drop_fds(&daemon->wire);
		return daemon_refused(daemon->wire.answer, daemon->wire.answer_bytes, why);
	}
	if (!rc && daemon->wire.answer_bytes < answer_bytes)
		rc = why_fail(why, -EPROTO, "harpd's message has %zu bytes, not %zu",
			      daemon->wire.answer_bytes, answer_bytes);
	if (!rc && daemon->wire.fd_count != fd_count && fd_count != FDS_ANY)
		rc = why_fail(why, -EPROTO, "harpd's message has %u descriptors, not %u",
			      daemon->wire.fd_count, fd_count);
	if (rc) {
		daemon->wire.ended = true;
		daemon_wire_drop_fds(&daemon->wire);
	}
	return rc;
}

/* ---- hello ---------------------------------------------------------------------------------- */

static bool daemon_name_valid(const char name[16])
{
	size_t len = strnlen(name, 16);

	if (!len || len == 16)
		return false;
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)name[i] <= ' ' || name[i] == 0x7f || name[i] == '/')
			return false;
	return true;
}

static bool daemon_name_fits(const char *name, char out[16])
{
	size_t len = strlen(name);

	if (!len || len > 15)
		return false;
	memcpy(out, name, len + 1);
	return true;
}

static int daemon_take_devices(struct harp_daemon *daemon, uint32_t count, const struct why *why)
{
	const uint8_t *at = daemon->wire.answer + sizeof(struct harp_lease_welcome);

	memcpy(daemon->devices, at, count * sizeof(daemon->devices[0]));
	for (uint32_t i = 0; i < count; i++) {
		struct harp_lease_device *device = &daemon->devices[i];

		/* A DPDK port is not a kernel interface. */
		if (!daemon_name_valid(device->ifname) ||
		    !device->ifindex != !!(device->flags & HARP_LEASE_DEVICE_DPDK))
			return why_fail(why, -EPROTO, "harpd's device %u has no name or index", i);
		daemon_clean(device->pci_path, sizeof(device->pci_path));
	}
	daemon->device_count = count;
	return 0;
}

static int daemon_hello(struct harp_daemon *daemon, const char *client, const struct why *why)
{
	struct harp_lease_hello hello = { 0 };
	struct harp_lease_welcome welcome;
	size_t devices_bytes;
	int rc;

	snprintf(hello.client, sizeof(hello.client), "%s", client ? client : "");
	rc = daemon_call(daemon, &hello, sizeof(hello), HARP_LEASE_HELLO, HARP_LEASE_WELCOME,
			 sizeof(welcome), 0, why);
	if (rc)
		return rc;
	memcpy(&welcome, daemon->wire.answer, sizeof(welcome));
	if (welcome.device_count > HARP_LEASE_DEVICES_MAX)
		return why_fail(why, -EPROTO, "harpd lists %u devices; at most %u are possible",
				welcome.device_count, HARP_LEASE_DEVICES_MAX);
	devices_bytes = welcome.device_count * sizeof(daemon->devices[0]);
	if (daemon->wire.answer_bytes - sizeof(welcome) < devices_bytes ||
	    daemon->wire.answer_bytes - sizeof(welcome) - devices_bytes < welcome.settings_bytes)
		return why_fail(why, -EPROTO,
				"harpd's message is too short for %u devices and %u "
				"bytes of settings",
				welcome.device_count, welcome.settings_bytes);
	daemon_clean(welcome.daemon, sizeof(welcome.daemon));
	memcpy(daemon->name, welcome.daemon, sizeof(daemon->name));
	daemon->settings = malloc(welcome.settings_bytes + 1u);
	if (!daemon->settings)
		return why_fail(why, -ENOMEM, "out of memory");
	memcpy(daemon->settings, daemon->wire.answer + sizeof(welcome) + devices_bytes,
	       welcome.settings_bytes);
	daemon->settings[welcome.settings_bytes] = '\0';
	if (strlen(daemon->settings) != welcome.settings_bytes)
		return why_fail(why, -EPROTO, "harpd's settings are not text");
	return daemon_take_devices(daemon, welcome.device_count, why);
}

void daemon_client(char client[DAEMON_CLIENT_BYTES])
{
	snprintf(client, DAEMON_CLIENT_BYTES, "libharp %s", harp_version());
}

static struct harp_daemon *daemon_new(unsigned wait_ms)
{
	struct harp_daemon *daemon = calloc(1, sizeof(*daemon));

	if (!daemon)
		return NULL;
	daemon->wire.fd = -1;
	daemon->wait_ms = wait_ms;
	return daemon;
}

int daemon_open(struct harp_daemon **out, const char *socket, const char *client, unsigned wait_ms,
		struct why *why)
{
	struct harp_daemon *daemon = daemon_new(wait_ms);
	int rc;

	*out = NULL;
	why_about(why, "%s", socket ? socket : "(no socket)");
	if (!daemon)
		return why_fail(why, -ENOMEM, "out of memory");
	rc = daemon_wire_connect(&daemon->wire, socket, wait_ms, why);
	if (!rc)
		rc = daemon_hello(daemon, client, why);
	if (rc) {
		harp_daemon_close(daemon);
		return rc;
	}
	*out = daemon;
	return 0;
}

int daemon_open_on(struct harp_daemon **out, int fd, const char *client, unsigned wait_ms,
		   const struct why *why)
{
	struct harp_daemon *daemon = daemon_new(wait_ms);
	int rc;

	*out = NULL;
	if (!daemon) {
		close(fd);
		return why_fail(why, -ENOMEM, "out of memory");
	}
	daemon->wire.fd = fd;
	rc = daemon_hello(daemon, client, why);
	if (rc)
		harp_daemon_close(daemon);
	else
		*out = daemon;
	return rc;
}

int harp_daemon_connect(struct harp_daemon **out, const char *socket, const char *client, char *why,
			size_t why_len)
{
	struct why reason = { .text = why, .size = why_len };

	return daemon_open(out, socket, client, WAIT_HELLO_MS, &reason);
}

const struct harp_lease_device *harp_daemon_devices(const struct harp_daemon *daemon,
						    unsigned *count)
{
	*count = daemon->device_count;
	return daemon->devices;
}

const char *harp_daemon_settings(const struct harp_daemon *daemon)
{
	return daemon->settings;
}

const char *harp_daemon_name(const struct harp_daemon *daemon)
{
	return daemon->name;
}

void harp_daemon_close(struct harp_daemon *daemon)
{
	if (!daemon)
		return;
	daemon_wire_close(&daemon->wire);
	free(daemon->settings);
	free(daemon);
}

/* ---- leases --------------------------------------------------------------------------------- */

static int daemon_check_rss(const struct harp_lease_leased *leased, const struct why *why)
{
	const struct harp_rss *rss = &leased->rss;

	if (!leased->queue_count || leased->queue >= leased->queue_count)
		return why_fail(why, -EPROTO, "harpd leases queue %u of %u", leased->queue,
				leased->queue_count);
	if (rss->kind > HARP_RSS_TOEPLITZ || rss->key_bytes > HARP_RSS_KEY_MAX ||
	    rss->table_count > HARP_RSS_TABLE_MAX ||
	    (rss->kind == HARP_RSS_TOEPLITZ && (rss->key_bytes < 40 || !rss->table_count)))
		return why_fail(why, -EPROTO,
				"harpd reports RSS of kind %u, %u bytes of key, %u entries",
				rss->kind, rss->key_bytes, rss->table_count);
	return 0;
}

static int daemon_check_lease(const struct harp_lease_request *request,
			      const struct harp_lease_leased *leased, const struct why *why)
{
	if (strncmp(leased->ifname, request->ifname, sizeof(leased->ifname)) != 0 ||
	    !leased->ifindex)
		return why_fail(why, -EPROTO, "harpd leases another interface than requested");
	if (request->queue != HARP_LEASE_QUEUE_ANY && leased->queue != request->queue)
		return why_fail(why, -EPROTO, "harpd leases queue %u instead", leased->queue);
	if (!leased->port_min || leased->port_min > leased->port_max)
		return why_fail(why, -EPROTO, "harpd leases ports %u to %u", leased->port_min,
				leased->port_max);
	return daemon_check_rss(leased, why);
}

/* Returns an unusable lease to harpd, which would otherwise keep its queue and ports until this
 * process exits. */
static void daemon_lease_return(struct harp_daemon *daemon)
{
	const struct harp_lease_release *leased = (const void *)daemon->wire.answer;
	struct why quiet = { 0 };

	/* lease_id has the same offset in all grants. */
	static_assert(offsetof(struct harp_lease_leased, lease_id) ==
			      offsetof(struct harp_lease_release, lease_id),
		      "LEASED");
	static_assert(offsetof(struct harp_lease_port, lease_id) ==
			      offsetof(struct harp_lease_release, lease_id),
		      "PORT");
	daemon_wire_drop_fds(&daemon->wire);
	if (daemon->wire.answer_bytes < sizeof(*leased) ||
	    daemon_check_header(daemon, leased->header.type, &quiet) ||
	    (leased->header.type != HARP_LEASE_LEASED && leased->header.type != HARP_LEASE_PORT))
		return;
	daemon->wire.ended = false;
	daemon_release(daemon, leased->lease_id, &quiet);
}

static int daemon_check_fds(unsigned count, const struct why *why)
{
	if (count == HARP_LEASE_FDS)
		return 0;
	return why_fail(why, -EPROTO, "harpd's message has %u descriptors, not %u", count,
			HARP_LEASE_FDS);
}

int daemon_lease(struct harp_daemon *daemon, struct harp_lease_request *request,
		 struct harp_lease_leased *out, int fds[HARP_LEASE_FDS], struct why *why)
{
	int rc = daemon_call(daemon, request, sizeof(*request), HARP_LEASE_LEASE, HARP_LEASE_LEASED,
			     sizeof(*out), FDS_ANY, why);

	if (!rc) {
		memcpy(out, daemon->wire.answer, sizeof(*out));
		rc = daemon_check_lease(request, out, why);
	}
	if (!rc)
		rc = daemon_check_fds(daemon->wire.fd_count, why);
	if (rc) {
		daemon_lease_return(daemon);
		return rc;
	}
	for (unsigned i = 0; i < HARP_LEASE_FDS; i++)
		fds[i] = daemon->wire.fds[i];
	daemon->wire.fd_count = 0;
	return 0;
}

/* Copies the message's fields and checks that it is complete. */
static int daemon_take_port(struct harp_daemon *daemon, const char *name, struct daemon_port *out,
			    struct why *why)
{
	const struct harp_lease_port *reply = (const void *)daemon->wire.answer;
	char reason[256];

	if (!reply->page_count || reply->page_count > HARP_LEASE_PORT_PAGES_MAX ||
	    reply->page_count != daemon->wire.fd_count)
		return why_fail(why, -EPROTO, "harpd leases %u queues with %u statistics pages",
				reply->page_count, daemon->wire.fd_count);
	if (reply->spec_bytes >= sizeof(out->spec) ||
	    reply->spec_bytes > daemon->wire.answer_bytes - sizeof(*reply))
		return why_fail(why, -EPROTO, "harpd's text of the port is truncated or too long");
	out->lease_id = reply->lease_id;
	out->page_count = reply->page_count;
	out->page_bytes = reply->page_bytes;
	memcpy(out->spec, reply + 1, reply->spec_bytes);
	out->spec[reply->spec_bytes] = '\0';
	if (strlen(out->spec) != reply->spec_bytes ||
	    harp_port_spec_parse(out->spec, &out->port, reason, sizeof(reason)))
		return why_fail(why, -EPROTO, "harpd's text of the port is invalid");
	if (strcmp(out->port.name, name) != 0 || out->port.queues != out->page_count)
		return why_fail(why, -EPROTO, "harpd leases port %s with %u queues instead",
				out->port.name, out->port.queues);
	return 0;
}

int daemon_lease_port(struct harp_daemon *daemon, const char *name, uint32_t queues,
		      const char *label, struct daemon_port *out, struct why *why)
{
	struct harp_lease_request request = { .queue = HARP_LEASE_QUEUE_ANY, .queues = queues };
	int rc;

	if (!daemon_name_fits(name, request.ifname))
		return why_fail(why, -EINVAL, "a port's name has 1 to %zu bytes",
				sizeof(request.ifname) - 1);
	snprintf(request.label, sizeof(request.label), "%s", label ? label : "");
	rc = daemon_call(daemon, &request, sizeof(request), HARP_LEASE_LEASE, HARP_LEASE_PORT,
			 sizeof(struct harp_lease_port), FDS_ANY, why);
	if (!rc)
		rc = daemon_take_port(daemon, name, out, why);
	if (rc) {
		daemon_lease_return(daemon);
		return rc;
	}
	memcpy(out->page_fds, daemon->wire.fds, out->page_count * sizeof(int));
	daemon->wire.fd_count = 0;
	return 0;
}

int daemon_release(struct harp_daemon *daemon, uint64_t lease_id, struct why *why)
{
	struct harp_lease_release release = { .lease_id = lease_id };

	return daemon_call(daemon, &release, sizeof(release), HARP_LEASE_RELEASE, HARP_LEASE_DONE,
			   sizeof(struct harp_lease_header), 0, why);
}

int daemon_route(struct harp_daemon *daemon, uint64_t lease_id, const struct harp_addr *dst,
		 struct harp_host_route *out, struct why *why)
{
	struct harp_lease_route_query query = { .lease_id = lease_id, .dst = *dst };
	struct harp_lease_routed routed;
	int rc = daemon_call(daemon, &query, sizeof(query), HARP_LEASE_ROUTE, HARP_LEASE_ROUTED,
			     sizeof(routed), 0, why);

	if (rc)
		return rc;
	memcpy(&routed, daemon->wire.answer, sizeof(routed));
	if (routed.error < 0 || routed.error > ERRNO_MAX)
		return why_fail(why, -EPROTO, "harpd reports a route with error %d", routed.error);
	if (routed.error)
		return why_fail(why, -routed.error, "the route: %s", strerror(routed.error));
	*out = routed.route;
	daemon_clean(out->ifname, sizeof(out->ifname));
	return 0;
}
