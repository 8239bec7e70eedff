/* SPDX-License-Identifier: Apache-2.0 */
/*
 * emulation.h - internal interface of the emulated GPU.
 *
 * README.md describes the parts. Anything that is not emulated ends the process, so a result is
 * either right or missing.
 */
#ifndef NCCL_EMULATION_H
#define NCCL_EMULATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit status of emulation_fail(): EX_SOFTWARE of sysexits.h. */
#define EMULATION_EXIT 70

/* ---- emulation.c ----------------------------------------------------------------------------- */

/* Prints "harp-nccl-rank: ..." and ends the process. */
__attribute__((noreturn, format(printf, 1, 2))) void emulation_fail(const char *format, ...);
void *emulation_alloc(size_t bytes); /* zeroed; never NULL */

/* ---- library.c: the unmodified libnccl.so.2 -------------------------------------------------- */

/* A CUDA function, and the emulation that replaces it in the library. */
struct replacement {
	const char *name;
	void *function;
};

struct symbol {
	const char *name;
	void *address;
	size_t bytes;
};

void library_open(const char *path);
int library_version(void);                             /* 23203 is 2.32.3 */
void *library_function(const char *name);              /* an exported function; fails without it */
const struct symbol *library_symbol(const char *name); /* from .symtab, or NULL */
const char *library_name_at(const void *address);      /* name of a symbol, or "?" */
void *library_stub(const char *name); /* a function that calls emulation_fail() with its name */

/* ---- memory.c: device memory and pinned host memory ------------------------------------------ */

enum memory_kind { MEMORY_PAGEABLE, MEMORY_PINNED, MEMORY_DEVICE }; /* cudaMemoryType 0, 1, 2 */

struct memory_block {
	char *start;
	size_t bytes;
	enum memory_kind kind;
};

#define MEMORY_DEVICE_BYTES (16ul << 30)

void *memory_alloc(enum memory_kind kind, size_t bytes); /* NULL: out of device memory */
void memory_free(enum memory_kind kind, void *address);  /* fails unless it is such a block */
bool memory_find(const void *address, struct memory_block *block); /* finds the address's block */
bool memory_is_device(const void *address);
void *memory_view(const void *address); /* the mapping in which the emulated GPU accesses it */

/* ---- stream.c: streams and events ------------------------------------------------------------ */

struct stream;
struct event;

struct stream *stream_open(void);
void stream_close(struct stream *stream); /* closes it after all submitted work */
void stream_call(struct stream *stream, void (*function)(void *), void *arg);
bool stream_is_idle(struct stream *stream);
void stream_synchronize(struct stream *stream);
bool stream_wait(struct stream *stream, int timeout_ms); /* false: timed out */

struct event *event_open(void);
void event_close(struct event *event);
void event_record(struct event *event, struct stream *stream);
void event_wait(struct event *event, struct stream *stream); /* the stream waits */
bool event_is_complete(struct event *event);
void event_synchronize(struct event *event);

/* ---- cuda.c, cuda_driver.c ------------------------------------------------------------------- */

enum cuda_error {
	CUDA_SUCCESS = 0,
	CUDA_INVALID_VALUE = 1,
	CUDA_OUT_OF_MEMORY = 2,
	CUDA_INVALID_DEVICE = 101,
	CUDA_NOT_READY = 600,
	CUDA_NOT_SUPPORTED = 801,
};

extern const struct replacement cuda_runtime[]; /* terminated by a NULL name */
int cuda_attribute(int attribute);
/* Exported to libcuda.so. */
#define EMULATION_EXPORT __attribute__((visibility("default")))
EMULATION_EXPORT void *cuda_driver_function(const char *name); /* may be a stub, never NULL */
EMULATION_EXPORT int cuda_driver_version(void);

/* Enqueues a kernel and copies its arguments. */
void cuda_launch(const void *function, unsigned blocks, struct stream *stream, const void *args,
		 size_t arg_bytes);
struct stream *cuda_stream(void *handle); /* handles up to 2 name the default stream */

/* ---- libcuda.so and libnvidia-ml.so.1 -------------------------------------------------------- */

int cuInit(unsigned flags);
int nvmlInit_v2(void);

/* ---- kernel.c: the device side of NCCL ------------------------------------------------------- */

void kernel_run(const char *name, const void *args, size_t arg_bytes, unsigned blocks);

#endif
