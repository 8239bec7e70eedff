/* SPDX-License-Identifier: Apache-2.0 */
/* cases.h - what NCCL's contract promises of a plugin, a sentence each; conform.c runs them. */
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
	CASE(refused, "a handle whose listener is gone gives a remote error")                      \
	CASE(abandoned, "half-open connections left behind do not survive finalize")               \
	/* cases_waits.c */                                                                        \
	CASE(calls_return, "after init no call waits, for an interface that opens neither")        \
	CASE(many_lives, "hundreds of set-ups and closes leave no descriptor and no thread")       \
	/* cases_data.c */                                                                         \
	CASE(sizes, "messages of all sizes and alignments arrive whole, with their real size")     \
	CASE(long_sizes, "sizes beyond 4 GiB are not cut, where the version has them")             \
	CASE(requests, "the 33rd request is NULL and success, until one is done")                  \
	CASE(fifo, "the n-th receive gets the n-th message")                                       \
	CASE(events, "a profiler hears of each message that has a handle, and of no other")        \
	CASE(truncated, "a message longer than its receive is an error that says truncated")       \
	CASE(two_ways, "two comms in opposite directions under load do not block each other")      \
	CASE(threads, "threads with contexts and comms of their own do not disturb one another")   \
	CASE(idle, "small messages arrive though the sender never calls again")                    \
	/* cases_rest.c */                                                                         \
	CASE(slow_receiver,                                                                        \
	     "a receiver that rests for long is neither called silent nor given up")               \
	CASE(silent_host, "a host that is gone is given up when the user timeout says")            \
	/* cases_memory.c */                                                                       \
	CASE(memory_freed, "deregistered with requests in flight, memory is the application's")    \
	CASE(memory_stopped, "and at once when the peer has stopped, which gets the right bytes")  \
	CASE(memory_shared, "two comms send from one pool, and one is closed in between")          \
	CASE(memory_twice, "of two registrations of the same memory one is given back in use")     \
	CASE(memory_regions, "memory of any size and at any place may be registered")              \
	/* cases_end.c */                                                                          \
	CASE(close_in_flight,                                                                      \
	     "closing with 32 requests in flight waits for nothing and leaves memory alone")       \
	CASE(peer_dies_receiving, "a receiver hears of its peer's death, and keeps hearing it")    \
	CASE(peer_dies_sending, "a sender hears of its peer's death, and keeps hearing it")        \
	CASE(sender_exits, "what the sender was told is done arrives although it exits at once")   \
	CASE(sender_closes, "the same when it closes, finalizes and exits")                        \
	CASE(lifecycle, "ten loads and unloads leave no thread, descriptor or mapping behind")     \
	CASE(unload_in_use, "unloading with comms open stops and frees everything")                \
	CASE(silence, "not a word after the last finalize")                                        \
	CASE(fork_child, "a forked child does no harm, whatever it calls")                         \
	CASE(exit_while_polling, "exit() with a thread inside the plugin is no crash")

#define CASE(name, sentence) void case_##name(const char *plugin, int version);
CASES(CASE)
#undef CASE

#endif
