/* SPDX-License-Identifier: Apache-2.0 */
/*
 * faults.h - counts calls of HARP's libraries to the C library and the kernel, and makes the call
 * with a given number fail.
 *
 * The program overrides the called functions. It counts only calls from shared objects whose name
 * contains "harp", and only those can fail.
 */
#ifndef HARP_TESTS_PLUGIN_FAULTS_H
#define HARP_TESTS_PLUGIN_FAULTS_H

#include <stdbool.h>

/* Calls that a permanent fault affects together. */
enum fault_kind { FAULT_MEMORY = 1, FAULT_DESCRIPTORS = 2, FAULT_THREADS = 4, FAULT_CALLS = 8 };

/* Makes the call with this number (from 1) fail; if permanent, every later one of its kind, too. */
void faults_begin(unsigned call, bool permanent);
/* Ends the injection of faults. */
void faults_end(void);
/* The name and the caller of the call that failed; "" if the number was not reached. */
const char *faults_injected(void);
/* Counts blocks that HARP has allocated since faults_begin() and not freed; prints each caller. */
unsigned faults_count_leaks(void);

#endif
