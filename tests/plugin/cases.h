/* SPDX-License-Identifier: Apache-2.0 */
/* cases.h - NCCL's contract with a plugin, one sentence per case; conform.c runs the cases. */
#ifndef HARP_TESTS_PLUGIN_CASES_H
#define HARP_TESTS_PLUGIN_CASES_H

#include "harness.h"

#define CASES(CASE)                                                                                \
	/* cases_setup.c */                                                                        \
	CASE(properties, "properties are complete, fit the ABI, and are the same in any thread")   \
	CASE(null_arguments, "NULL comms, handles and requests are rejected or ignored")           \
	CASE(misuse, "an invalid argument or setting causes one WARN and creates no object")       \
	CASE(traffic_class, "lanes carry the traffic class in the differentiated services field")  \
	CASE(accept_twice, "one listener accepts two connections")                                 \
	CASE(early_connect, "a sender connects and sends before accept is first called")           \
	CASE(many_at_once, "one thread sets up sixteen connections, interleaved")                  \
	CASE(corrupt_handle, "connect to a handle with a changed byte fails with one error")       \
	CASE(refused, "connect to a closed listener fails with a remote error")                    \
	CASE(abandoned, "finalize ends half-open connections")                                     \
	/* cases_blocking.c */                                                                     \
	CASE(calls_return, "after the first listen or connect of a device no call blocks")         \
	CASE(many_connections, "hundreds of connections leak no descriptor and no thread")         \
	/* cases_data.c */                                                                         \
	CASE(sizes,                                                                                \
	     "messages of all sizes and alignments arrive whole, and test reports the size")       \
	CASE(long_sizes, "sizes above 4 GiB are not truncated, in versions with 64-bit sizes")     \
	CASE(requests, "the 33rd isend or irecv succeeds with a NULL request until one completes") \
	CASE(fifo, "the n-th receive gets the n-th message")                                       \
	CASE(events, "exactly the messages with a profiler handle are reported as events")         \
	CASE(truncated, "a message longer than its receive fails with \"truncated\"")              \
	CASE(two_directions,                                                                       \
	     "two comms in opposite directions under load do not block each other")                \
	CASE(threads, "threads with their own contexts and comms do not affect each other")        \
	CASE(idle, "small messages arrive even if the sender makes no further call")               \
	/* cases_timeout.c */                                                                      \
	CASE(slow_receiver, "a receiver that posts no receive for long does not time out")         \
	CASE(silent_host, "lanes to a host that does not answer end after the user timeout")       \
	/* cases_memory.c */                                                                       \
	CASE(memory_freed, "memory is not accessed after deregMr, even with requests in flight")   \
	CASE(memory_stopped,                                                                       \
	     "deregMr returns at once with a stopped peer, and the peer gets no wrong byte")       \
	CASE(memory_shared,                                                                        \
	     "of two comms that send from one pool, one closes while both are busy")               \
	CASE(memory_duplicate, "one of two registrations of a region ends while both are in use")  \
	CASE(memory_regions, "memory of any size at any address can be registered")                \
	/* cases_end.c */                                                                          \
	CASE(close_in_flight,                                                                      \
	     "close with 32 requests in flight returns at once, and memory is not accessed")       \
	CASE(peer_dies_receiving, "a receiver fails permanently after the sender's process died")  \
	CASE(peer_dies_sending, "a sender fails permanently after the receiver's process died")    \
	CASE(sender_exits, "a completed send arrives even if the sender exits at once")            \
	CASE(sender_closes, "a completed send arrives if the sender closes, finalizes and exits")  \
	CASE(lifecycle, "ten loads and unloads leak no thread, descriptor or mapping")             \
	CASE(unload_in_use, "unloading with open comms stops and frees everything")                \
	CASE(silence, "nothing is logged after the last finalize")                                 \
	CASE(fork_child, "a forked child affects nothing, whatever it calls")                      \
	CASE(exit_while_polling, "exit() with a thread inside the plugin does not crash")

#define CASE(name, sentence) void case_##name(const char *plugin, int version);
CASES(CASE)
#undef CASE

#endif
