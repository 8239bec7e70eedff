/* SPDX-License-Identifier: Apache-2.0 */
/* library.h - loads an optional library of HARP, which needs more than libc. */
#ifndef HARP_HOST_LIBRARY_H
#define HARP_HOST_LIBRARY_H

/* As dlopen(RTLD_NOW | RTLD_LOCAL); name: such as "libharp-xdp.so". lib_dir NULL: the directory of
 * this code's library or program, then the loader's search path. NULL: see dlerror(). */
void *library_load(const char *name, const char *lib_dir);

#endif
