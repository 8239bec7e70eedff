/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cost.c - see cost.h.
 *
 * The time of an operation is hops x (latency + overhead of the protocol) + bytes on the busiest link / rate.
 *
 *   hops      links between hosts that the last byte crosses, one after the other. Links inside a host are much faster and
 *             are left out.
 *   latency   of a small message, one way: measured.
 *   overhead  of GPU and proxy for each message: NCCL's own constants (baseLat, hwLat) for a ring over InfiniBand, less the
 *             1.7 us of the wire. No GPU was measured.
 *   rate      by size of message: measured, with several streams at once. The messages of LL are twice the data, as each 4
 *             bytes carry a flag.
 */
#include "tuner/cost.h"

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

/* Between two points it is interpolated; before the first one it stays, as the latency has what a small message costs, and
 * so it does behind the last one. */
static double cost_rate_mb(const struct profile_curve *curve, double at)
{
	const struct profile_point *point = curve->points, *next;
	double share;

	if (at <= (double)point->at)
		return point->mb_per_s;
	for (unsigned i = 1; i < curve->count; i++, point = next) {
		next = &curve->points[i];
		if (at > (double)next->at)
			continue;
		share = (at - (double)point->at) / (double)(next->at - point->at);
		return point->mb_per_s + share * ((double)next->mb_per_s - point->mb_per_s);
	}
	return point->mb_per_s;
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

/* Of the operation's bytes, so many cross the busiest link. */
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
	return model->nodes == 2 ? 1 : 2; /* two trees: a host is a leaf of one of them */
}

float cost_us(const struct cost_model *model, enum tuner_function function,
	      enum tuner_algorithm algorithm, enum tuner_protocol protocol, size_t bytes,
	      int pipe_ops)
{
	double channels = cost_channels(&model->measured), message, wire, latency_us;

	if (!cost_is_known(function, algorithm))
		return TUNER_COST_IGNORED;
	latency_us =
		(double)model->measured.latency_ns / 1e3 + cost_protocols[protocol].overhead_us;
	wire = (double)bytes * cost_protocols[protocol].wire_bytes;
	/* A ring's messages are a rank's part of the data. */
	message = wire / channels / (algorithm == TUNER_RING ? (double)model->ranks : 1);
	if (message > cost_protocols[protocol].message_bytes_max)
		message = cost_protocols[protocol].message_bytes_max;
	return (float)(cost_hops(model, function, algorithm) * latency_us * pipe_ops +
		       cost_share(model, function, algorithm) * wire /
			       cost_rate_mb(&model->measured.rates, message));
}

/* The first point that reaches so many per cent of the best one. */
static uint64_t cost_sufficient(const struct profile_curve *curve, unsigned per_cent)
{
	uint64_t best = 0;

	for (unsigned i = 0; i < curve->count; i++)
		best = curve->points[i].mb_per_s > best ? curve->points[i].mb_per_s : best;
	for (unsigned i = 0; i < curve->count; i++)
		if (curve->points[i].mb_per_s * 100ull >= best * per_cent)
			return curve->points[i].at;
	return 0;
}

int cost_channels(const struct profile_tuner *measured)
{
	uint64_t channels = cost_sufficient(&measured->channels, 95);

	return channels > 0 && channels < 64 ? (int)channels : 1;
}

size_t cost_chunk_bytes(const struct profile_tuner *measured)
{
	return cost_sufficient(&measured->rates, 90);
}
