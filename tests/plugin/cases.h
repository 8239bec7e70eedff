/* SPDX-License-Identifier: Apache-2.0 */
/* cases.h - NCCL's contract with a plugin, one sentence for each case; conform.c runs them. */
#ifndef HARP_TESTS_PLUGIN_CASES_H
#define HARP_TESTS_PLUGIN_CASES_H

#include "harness.h"

#define CASES(CASE)                                                                                \
	/* cases_setup.c */                                                                        \
	CASE(properties, "properties are complete, true to the ABI, and the same from any thread") \
	CASE(null_arguments, "NULL comms, handles and requests are refused or ignored")            \
	CASE(misuse, "invalid arguments and settings give one WARN and no object")                 \
	CASE(traffic_class, "the traffic class is the differentiated services field of lanes")     \
	CASE(accept_twice, "one listener accepts two connections")                                 \
	CASE(early_connect, "a sender connects and sends before accept is first called")           \
	CASE(many_at_once, "sixteen connections are set up by one thread, interleaved")            \
	CASE(corrupt_handle, "a handle with any byte changed gives one error and no comm")         \
	CASE(refused, "a handle whose listener is closed gives a remote error")                    \
	CASE(abandoned, "finalize ends connections that are half open")                            \
	/* cases_waits.c */                                                                        \
	CASE(calls_return, "after the first listen or connect of a device no call waits")          \
	CASE(many_lives, "hundreds of connections leave no descriptor and no thread")              \
	/* cases_data.c */                                                                         \
	CASE(sizes, "messages of all sizes and alignments arrive whole, with their real size")     \
	CASE(long_sizes, "sizes beyond 4 GiB are not cut, where the version has them")             \
	CASE(requests, "the 33rd request is NULL and success, until one is done")                  \
	CASE(fifo, "the n-th receive gets the n-th message")                                       \
	CASE(events, "each message with a profiler handle is an event, and no other message is")   \
	CASE(truncated, "a message longer than its receive is the error truncated")                \
	CASE(two_ways, "two comms in opposite directions under load do not block each other")      \
	CASE(threads, "threads with their own contexts and comms do not affect each other")        \
	CASE(idle, "small messages arrive even if the sender makes no further call")               \
	/* cases_rest.c */                                                                         \
	CASE(slow_receiver, "a receiver that does not receive for long is not taken for silent")   \
	CASE(silent_host, "a host that does not answer is given up after the user timeout")        \
	/* cases_memory.c */                                                                       \
	CASE(memory_freed, "memory deregistered with requests in flight is not accessed any more") \
	CASE(memory_stopped,                                                                       \
	     "the same at once if the peer is stopped, and the peer gets the right bytes")         \
	CASE(memory_shared, "two comms send from one pool, and one of them is closed meanwhile")   \
	CASE(memory_twice, "one of two registrations of the same memory is removed while in use")  \
	CASE(memory_regions, "memory of any size at any address can be registered")                \
	/* cases_end.c */                                                                          \
	CASE(close_in_flight,                                                                      \
	     "a close with 32 requests in flight does not wait, and memory is not accessed")       \
	CASE(peer_dies_receiving,                                                                  \
	     "the death of its peer is an error of a receiver, and stays one")                     \
	CASE(peer_dies_sending, "the death of its peer is an error of a sender, and stays one")    \
	CASE(sender_exits, "a completed send arrives even if the sender exits at once")            \
	CASE(sender_closes, "the same if the sender closes, finalizes and exits")                  \
	CASE(lifecycle, "ten loads and unloads leave no thread, descriptor or mapping")            \
	CASE(unload_in_use, "unloading with comms open stops and frees everything")                \
	CASE(silence, "nothing is logged after the last finalize")                                 \
	CASE(fork_child, "a forked child affects nothing, whatever it calls")                      \
	CASE(exit_while_polling, "exit() with a thread inside the plugin does not crash")

#define CASE(name, sentence) void case_##name(const char *plugin, int version);
CASES(CASE)
#undef CASE

#endif
