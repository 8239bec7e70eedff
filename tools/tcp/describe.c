/* SPDX-License-Identifier: Apache-2.0 */
/* describe.c - a HARP connection and its instance, as JSON. */
#include "describe.h"

#include <inttypes.h>

static void describe_conn(const struct harp_conn *conn, FILE *out)
{
	struct harp_tcp_info info = { 0 };

	harp_conn_info(conn, &info, sizeof(info));
	fprintf(out,
		", \"cc\": \"%s\", \"srtt_ns\": %" PRIu64 ", \"rtt_ns_min\": %" PRIu64
		", \"snd_mss_bytes\": %u, \"rcv_mss_bytes\": %u, \"options\": %u"
		", \"retransmits\": %" PRIu64 ", \"rto_count\": %" PRIu64
		", \"snd_cwnd_bytes\": %" PRIu64 ", \"bytes_acked\": %" PRIu64
		", \"bytes_received\": %" PRIu64 ", \"bytes_retransmitted\": %" PRIu64
		", \"ecn_ce_in\": %" PRIu64 ", \"ecn_reductions\": %" PRIu64
		", \"snd_ssthresh_bytes\": %" PRIu64 ", \"snd_wnd_bytes\": %" PRIu64
		", \"bytes_in_flight\": %" PRIu64 ", \"fast_retransmits\": %" PRIu64
		", \"lost_segs\": %" PRIu64 ", \"tlp_probes\": %" PRIu64
		", \"undone_recoveries\": %" PRIu64,
		harp_congestion_name((enum harp_congestion)info.congestion), info.srtt_ns,
		info.rtt_ns_min, info.snd_mss_bytes, info.rcv_mss_bytes, info.options,
		info.retransmits, info.rto_count, info.snd_cwnd_bytes, info.bytes_acked,
		info.bytes_received, info.bytes_retransmitted, info.ecn_ce_in, info.ecn_reductions,
		info.snd_ssthresh_bytes, info.snd_wnd_bytes, info.bytes_in_flight,
		info.fast_retransmits, info.lost_segs, info.tlp_probes, info.undone_recoveries);
}

static void describe_instance(struct harp_instance *instance, FILE *out)
{
	struct harp_nic_stats nic = { 0 };
	uint64_t counts[32] = { 0 }, value;
	int verdicts = harp_instance_steering(instance, counts, 32);

	fprintf(out, ", \"path\": \"%s\", \"steering\": {", harp_instance_describe(instance));
	for (int i = 0; i < verdicts && i < 32; i++)
		fprintf(out, "%s\"%s\": %" PRIu64, i ? ", " : "", harp_steering_name((unsigned)i),
			counts[i]);
	fprintf(out, "}, \"stats\": {");
	for (unsigned i = 0; i < harp_stats_count(); i++) {
		value = 0;
		harp_stack_stat(harp_instance_stack(instance), harp_stats_name(i), &value);
		fprintf(out, "%s\"%s\": %" PRIu64, i ? ", " : "", harp_stats_name(i), value);
	}
	harp_instance_nic(instance)->ops->stats(harp_instance_nic(instance), &nic);
	fprintf(out,
		"}, \"nic\": {\"rx_packets\": %" PRIu64 ", \"tx_packets\": %" PRIu64
		", \"rx_dropped\": %" PRIu64 ", \"rx_ring_full\": %" PRIu64
		", \"rx_fill_empty\": %" PRIu64 ", \"tx_invalid\": %" PRIu64 ", \"kicks\": %" PRIu64
		", \"copied_bytes\": %" PRIu64 ", \"driver_copied_bytes\": %" PRIu64 "}",
		nic.rx_packets, nic.tx_packets, nic.rx_dropped, nic.rx_ring_full, nic.rx_fill_empty,
		nic.tx_invalid, nic.kicks, nic.copied_bytes, nic.driver_copied_bytes);
}

void describe_harp(struct harp_instance *instance, const struct harp_conn *conn, FILE *out)
{
	fprintf(out, "{\"kind\": \"harp\"");
	if (conn)
		describe_conn(conn, out);
	if (instance)
		describe_instance(instance, out);
	fprintf(out, "}");
}
