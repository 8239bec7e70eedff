/* SPDX-License-Identifier: Apache-2.0 */
/* toml_scan.h - whether harp.toml requires encryption, for a job that harpd cannot tell. */
#ifndef HARP_PLUGIN_TOML_SCAN_H
#define HARP_PLUGIN_TOML_SCAN_H

#include <stddef.h>

/*
 * Reads a text file that others cannot have written into text, which has bytes_max + 2 bytes. 1: read; 0: there is no
 * file; -EINVAL: it cannot be read or trusted, with the reason in why.
 */
int toml_read(const char *path, char *text, size_t bytes_max, char *why, size_t why_len);

/*
 * 1: line *line of the file may require encryption; 0: no line does, or there is no file. -EINVAL: that cannot
 * be told (no permission, no regular file, one that others may write), with the reason in why.
 */
int toml_scan_encrypt(const char *path, unsigned *line, char *why, size_t why_len);

#endif
