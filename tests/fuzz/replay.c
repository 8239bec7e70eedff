/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay.c - runs a fuzz target over files and folders, without libFuzzer. Exit status 2: no input.
 *
 * --mutate N: afterwards runs each input N times with random damage, the same in every run.
 */
#include "fuzz.h"

#include <dirent.h>
#include <sys/stat.h>

#include "base/rng.h"

#define REPLAY_BYTES_MAX (1u << 20)

static unsigned long mutations;
static struct rng rng;

static void replay(const uint8_t *bytes, size_t len)
{
	/* Exact size: ASan reports a read behind its end. */
	uint8_t *exact = malloc(len ? len : 1);

	CHECK(exact);
	memcpy(exact, bytes, len);
	LLVMFuzzerTestOneInput(exact, len);
	free(exact);
}

/* Changes one to four bytes, and truncates a quarter of the inputs. */
static void replay_mutated(uint8_t *copy, const uint8_t *bytes, size_t len)
{
	memcpy(copy, bytes, len);
	for (uint32_t n = 1 + rng_below(&rng, 4); n > 0; n--)
		copy[rng_below(&rng, (uint32_t)len)] = (uint8_t)rng_u64(&rng);
	replay(copy, rng_below(&rng, 4) ? len : 1 + rng_below(&rng, (uint32_t)len));
}

static unsigned replay_file(const char *path)
{
	static uint8_t bytes[REPLAY_BYTES_MAX], copy[REPLAY_BYTES_MAX];
	FILE *file = fopen(path, "rb");
	size_t len;

	if (!file) {
		perror(path);
		exit(2);
	}
	len = fread(bytes, 1, sizeof(bytes), file);
	fclose(file);
	replay(bytes, len);
	for (unsigned long i = 0; i < mutations && len > 0; i++)
		replay_mutated(copy, bytes, len);
	return 1;
}

static unsigned replay_folder(const char *path)
{
	DIR *dir = opendir(path);
	unsigned count = 0;

	if (!dir)
		return replay_file(path);
	for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
		char name[4096];

		if (entry->d_name[0] == '.')
			continue;
		snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
		count += replay_file(name);
	}
	closedir(dir);
	return count;
}

int main(int argc, char **argv)
{
	unsigned count = 0;
	int first = 1;

	if (argc > 2 && strcmp(argv[1], "--mutate") == 0) {
		mutations = strtoul(argv[2], NULL, 10);
		first = 3;
	}
	rng_seed(&rng, 20261121);
	for (int i = first; i < argc; i++)
		count += replay_folder(argv[i]);
	printf("%u inputs\n", count);
	return count > 0 ? 0 : 2;
}
