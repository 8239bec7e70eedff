/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tuner.c - NCCL's tuner tables: algorithm and protocol are chosen by measurements instead of
 * NCCL's model of InfiniBand.
 *
 * Theory of operation
 * -------------------
 * The tuner changes nothing without a [tuner] in the profile, with HARP_TUNER=off, and for
 * communicators within one host.
 *
 * All ranks of a communicator must make the same decision, or they deadlock. So a decision depends
 * only on the measured times and the arguments, and hosts with different times refuse to connect
 * (path_policy_tuner(), in the handle).
 *
 * Since v3, NCCL passes its cost table: ignored entries stay ignored, and entries that the model
 * covers are replaced. v2 has no table and does not say what is allowed. So the v2 tuner decides
 * only if neither NCCL_ALGO nor NCCL_PROTO is set and NCCL has neither NVLS nor CollNet.
 *
 * The tuner lowers the number of channels to 1 if one stream is as fast as several. It never raises
 * it, because NCCL does not report the number of channels.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/path_policy.h"
#include "harp_config.h"
#include "process/config.h"
#include "tuner/tuner_abi.h"

#define TUNER_EXPORT __attribute__((visibility("default")))

TUNER_EXPORT extern const struct nccl_tuner_v4 ncclTunerPlugin_v4;

/* ---- costs ----------------------------------------------------------------------------------- */

/*
 * The time of an operation is hops * (latency + overhead) + bytes on the busiest link / rate.
 *
 *   hops      links between hosts that the last byte crosses in sequence. Links inside a host are
 *             much faster and are ignored.
 *   latency   one way, of a small message: measured.
 *   overhead  of GPU and proxy per message and protocol: NCCL's constants (baseLat, hwLat) for a
 *             ring over InfiniBand, less 1.7 us for the wire. No GPU was measured.
 *   rate      by message size: measured with several concurrent streams. LL's messages are twice
 *             the data, as each 4 bytes carry a flag.
 */

/* NCCL's context; NULL: the tuner changes nothing. */
struct cost_model {
	struct profile_tuner measured;
	size_t ranks, nodes; /* of the communicator; nodes > 1 */
};

/* A chunk is the smallest message that reaches this part of the best rate. */
#define CHUNK_RATE_PER_CENT 90u
#define COST_LL_BYTES_MAX 65536.0
#define COST_LL128_BYTES_MAX 614400.0
#define COST_SIMPLE_BYTES_MAX 524288.0

static const struct {
	double overhead_us, wire_bytes, message_bytes_max;
} cost_protocols[] = {
	[TUNER_LL] = { 1.0, 2.0, COST_LL_BYTES_MAX },
	[TUNER_LL128] = { 2.3, 16.0 / 15, COST_LL128_BYTES_MAX },
	[TUNER_SIMPLE] = { 12.3, 1.0, COST_SIMPLE_BYTES_MAX },
};

static unsigned cost_log2(size_t n) /* rounded up */
{
	unsigned log = 0;

	while ((size_t)1 << log < n)
		log++;
	return log;
}

/* Interpolates between two points; constant before the first one (the latency covers small
 * messages) and after the last one. */
static double cost_rate_mb(const struct profile_curve *curve, double at)
{
	const struct profile_point *point = curve->points, *next;
	double share;

	if (at <= (double)point->at)
		return (double)point->mb_per_s;
	for (unsigned i = 1; i < curve->count; i++, point = next) {
		next = &curve->points[i];
		if (at > (double)next->at)
			continue;
		share = (at - (double)point->at) / (double)(next->at - point->at);
		return (double)point->mb_per_s +
		       share * ((double)next->mb_per_s - (double)point->mb_per_s);
	}
	return (double)point->mb_per_s;
}

static bool cost_is_known(enum tuner_function function, enum tuner_algorithm algorithm)
{
	bool gathers = function == TUNER_ALL_GATHER || function == TUNER_REDUCE_SCATTER;

	switch (algorithm) {
	case TUNER_RING:
		return true;
	case TUNER_TREE:
	case TUNER_NVLS_TREE:
		return function == TUNER_ALL_REDUCE;
	case TUNER_PAT:
		return gathers;
	default:
		return false;
	}
}

static double cost_hops(const struct cost_model *model, enum tuner_function function,
			enum tuner_algorithm algorithm)
{
	double there_and_back = function == TUNER_ALL_REDUCE ? 2 : 1;

	if (algorithm == TUNER_RING)
		return there_and_back * (double)(model->nodes - 1);
	return there_and_back * cost_log2(model->nodes);
}

/* The factor of the operation's bytes that cross the busiest link. */
static double cost_share(const struct cost_model *model, enum tuner_function function,
			 enum tuner_algorithm algorithm)
{
	double others = (double)(model->ranks - 1) / (double)model->ranks;

	if (function == TUNER_BROADCAST || function == TUNER_REDUCE)
		return 1;
	if (function != TUNER_ALL_REDUCE)
		return others;
	if (algorithm == TUNER_RING)
		return 2 * others;
	return model->nodes == 2 ? 1 : 2; /* two trees: a host is a leaf of one */
}

/* The first point that reaches this percentage of the best one. */
static uint64_t cost_sufficient(const struct profile_curve *curve, unsigned per_cent)
{
	uint64_t best = 0;

	for (unsigned i = 0; i < curve->count; i++)
		best = curve->points[i].mb_per_s > best ? curve->points[i].mb_per_s : best;
	for (unsigned i = 0; i < curve->count; i++)
		if (curve->points[i].mb_per_s * 100 >= best * per_cent)
			return curve->points[i].at;
	return 0;
}

/* The fewest streams that reach 95 % of the best rate. */
static int cost_channels(const struct profile_tuner *measured)
{
	uint64_t channels = cost_sufficient(&measured->channels, 95);

	return channels > 0 && channels < 64 ? (int)channels : 1;
}

/* In us; TUNER_COST_IGNORED: the model does not cover the algorithm or the function. */
static float cost_us(const struct cost_model *model, enum tuner_function function,
		     enum tuner_algorithm algorithm, enum tuner_protocol protocol, size_t bytes,
		     int pipe_ops)
{
	double channels = cost_channels(&model->measured), message, wire, latency_us;

	if (!cost_is_known(function, algorithm))
		return TUNER_COST_IGNORED;
	latency_us =
		(double)model->measured.latency_ns / 1e3 + cost_protocols[protocol].overhead_us;
	wire = (double)bytes * cost_protocols[protocol].wire_bytes;
	/* A ring's message is one rank's share of the data. */
	message = wire / channels / (algorithm == TUNER_RING ? (double)model->ranks : 1);
	if (message > cost_protocols[protocol].message_bytes_max)
		message = cost_protocols[protocol].message_bytes_max;
	return (float)(cost_hops(model, function, algorithm) * latency_us * pipe_ops +
		       cost_share(model, function, algorithm) * wire /
			       cost_rate_mb(&model->measured.rates, message));
}

/* ---- contexts ------------------------------------------------------------------------------- */

static bool tuner_read(struct profile_tuner *out)
{
	const char *file = plugin_config()->profile;
	char host[65] = "", why[256];
	struct profile profile;

	/* The times that the handles' digest stands for. */
	if (path_policy_tuner_times(out))
		return out->latency_ns > 0;
	/* Before the net plugin's init, as in `harpctl tune --explain`. */
	if (!file[0])
		file = getenv("HARP_PROFILE");
	if (!file || !file[0])
		file = HARP_CONFIG_PROFILE;
	gethostname(host, sizeof(host) - 1);
	/* The net plugin's init has logged errors of the profile. */
	if (profile_read(file, host, &profile, why, sizeof(why)) <= 0)
		return false;
	*out = profile.tuner;
	return out->latency_ns > 0;
}

static enum nccl_result tuner_init_v5(void **context, uint64_t comm_id, size_t ranks, size_t nodes,
				      nccl_logger logger, void *nvl_domains, void *constants)
{
	struct profile_tuner measured;
	struct cost_model *model;

	(void)comm_id;
	(void)nvl_domains;
	(void)constants;
	*context = NULL;
	if (nodes < 2 || plugin_config()->tuner == TUNER_OFF || !tuner_read(&measured))
		return NCCL_SUCCESS;
	model = malloc(sizeof(*model));
	if (!model)
		return NCCL_SYSTEM_ERROR; /* else this rank would decide differently */
	*model = (struct cost_model){ .measured = measured, .ranks = ranks, .nodes = nodes };
	if (logger)
		logger(NCCL_LOG_INFO, NCCL_LOG_INIT | NCCL_LOG_TUNING, __func__, __LINE__,
		       "TUNER/HARP: %zu ranks on %zu hosts, by the profile: latency %.1f us, %d "
		       "channels pay, chunks of %zu KiB",
		       ranks, nodes, (double)measured.latency_ns / 1e3, cost_channels(&measured),
		       (size_t)cost_sufficient(&measured.rates, CHUNK_RATE_PER_CENT) / 1024);
	*context = model;
	return NCCL_SUCCESS;
}

static enum nccl_result tuner_init_v2(size_t ranks, size_t nodes, nccl_logger logger,
				      void **context)
{
	return tuner_init_v5(context, 0, ranks, nodes, logger, NULL, NULL);
}

/* Pins the library: NCCL 2.26 closes a tuner's library once more often than it opened it, and then
 * still calls the net plugin in it. */
static enum nccl_result tuner_init_v4(size_t ranks, size_t nodes, nccl_logger logger,
				      void **context)
{
	Dl_info info;

	if (dladdr(&ncclTunerPlugin_v4, &info) && info.dli_fname)
		(void)dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
	return tuner_init_v2(ranks, nodes, logger, context);
}

static enum nccl_result tuner_finalize(void *context)
{
	free(context);
	return NCCL_SUCCESS;
}

/* ---- decisions ------------------------------------------------------------------------------- */

static void tuner_channels(const struct cost_model *model, int *channels)
{
	if (channels && cost_channels(&model->measured) == 1)
		*channels = 1;
}

static enum nccl_result tuner_info_v4(void *context, int function, size_t bytes, int pipe_ops,
				      float **costs, int algorithms, int protocols, int registered,
				      int *channels)
{
	const struct cost_model *model = context;
	float *cost = (float *)costs, us;

	(void)registered;
	if (!model || function < 0 || function >= TUNER_FUNCTIONS)
		return NCCL_SUCCESS;
	for (int a = 0; a < algorithms; a++) {
		for (int p = 0; p < protocols; p++, cost++) {
			/* Keeps NCCL's cost of algorithms that the model does not cover. */
			if (*cost < 0 || a >= TUNER_ALGORITHMS || p >= TUNER_PROTOCOLS)
				continue;
			us = cost_us(model, (enum tuner_function)function, (enum tuner_algorithm)a,
				     (enum tuner_protocol)p, bytes, pipe_ops);
			if (us >= 0)
				*cost = us;
		}
	}
	tuner_channels(model, channels);
	return NCCL_SUCCESS;
}

static enum nccl_result tuner_info_v3(void *context, int function, size_t bytes, int pipe_ops,
				      float **costs, int algorithms, int protocols, int *channels)
{
	return tuner_info_v4(context, function, bytes, pipe_ops, costs, algorithms, protocols, 0,
			     channels);
}

static enum nccl_result tuner_info_v2(void *context, int function, size_t bytes, int collnet,
				      int nvls, int pipe_ops, int *algorithm, int *protocol,
				      int *channels)
{
	static const enum tuner_algorithm algorithms[] = { TUNER_RING, TUNER_TREE };
	static const enum tuner_protocol protocols[] = { TUNER_LL, TUNER_SIMPLE };
	const struct cost_model *model = context;
	float best = TUNER_COST_IGNORED, us;

	if (!model || function < 0 || function >= TUNER_FUNCTIONS || collnet || nvls ||
	    getenv("NCCL_ALGO") || getenv("NCCL_PROTO"))
		return NCCL_SUCCESS;
	for (unsigned a = 0; a < 2; a++) {
		for (unsigned p = 0; p < 2; p++) {
			us = cost_us(model, (enum tuner_function)function, algorithms[a],
				     protocols[p], bytes, pipe_ops);
			if (us < 0 || (best >= 0 && us >= best))
				continue;
			best = us;
			*algorithm = (int)algorithms[a];
			*protocol = (int)protocols[p];
		}
	}
	tuner_channels(model, channels);
	return NCCL_SUCCESS;
}

/* LL and LL128 have fixed chunk sizes. NCCL limits the result to its buffers. */
static enum nccl_result tuner_chunk_v6(void *context, int function, size_t bytes, int algorithm,
				       int protocol, int channels, size_t *chunk_bytes)
{
	const struct cost_model *model = context;

	(void)function;
	(void)bytes;
	(void)algorithm;
	(void)channels;
	if (model && protocol == TUNER_SIMPLE)
		*chunk_bytes = cost_sufficient(&model->measured.rates, CHUNK_RATE_PER_CENT);
	return NCCL_SUCCESS;
}

/* ---- the tables ------------------------------------------------------------------------------ */

#define TUNER_COMMON(init_form, info_form)                                                         \
	.name = "HARP", .init = tuner_init_##init_form, .get_coll_info = tuner_info_##info_form,   \
	.finalize = tuner_finalize

TUNER_EXPORT extern const struct nccl_tuner_v2 ncclTunerPlugin_v2;
const struct nccl_tuner_v2 ncclTunerPlugin_v2 = { TUNER_COMMON(v2, v2) };
TUNER_EXPORT extern const struct nccl_tuner_v3 ncclTunerPlugin_v3;
const struct nccl_tuner_v3 ncclTunerPlugin_v3 = { TUNER_COMMON(v2, v3) };
const struct nccl_tuner_v4 ncclTunerPlugin_v4 = { TUNER_COMMON(v4, v4) };
TUNER_EXPORT extern const struct nccl_tuner_v5 ncclTunerPlugin_v5;
const struct nccl_tuner_v5 ncclTunerPlugin_v5 = { TUNER_COMMON(v5, v4) };
TUNER_EXPORT extern const struct nccl_tuner_v6 ncclTunerPlugin_v6;
const struct nccl_tuner_v6 ncclTunerPlugin_v6 = { TUNER_COMMON(v5, v4),
						  .get_chunk_size = tuner_chunk_v6 };
