/* SPDX-License-Identifier: Apache-2.0 */
/* library.h - finds a part of HARP that is a library of its own, because it needs more than libc. */
#ifndef HARP_HOST_LIBRARY_H
#define HARP_HOST_LIBRARY_H

/* As dlopen(RTLD_NOW | RTLD_LOCAL); name: "libharp-xdp.so". lib_dir NULL: beside the library or program that this code
 * is in, then the loader's search path. NULL: dlerror() has the loader's words of the place where the file lies. */
void *library_load(const char *name, const char *lib_dir);

#endif
