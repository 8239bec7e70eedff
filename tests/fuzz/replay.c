/* SPDX-License-Identifier: Apache-2.0 */
/* replay.c - runs a fuzz target over files and folders, without libFuzzer. Exit 2: nothing to run. */
#include "fuzz.h"

#include <dirent.h>
#include <sys/stat.h>

#define REPLAY_BYTES_MAX (1u << 20)

static unsigned replay_file(const char *path)
{
	static uint8_t bytes[REPLAY_BYTES_MAX];
	FILE *file = fopen(path, "rb");
	uint8_t *exact;
	size_t len;

	if (!file) {
		perror(path);
		exit(2);
	}
	len = fread(bytes, 1, sizeof(bytes), file);
	fclose(file);
	/* Of its own size, so that a read behind the end is seen. */
	exact = malloc(len ? len : 1);
	FUZZ_CLAIM(exact);
	memcpy(exact, bytes, len);
	LLVMFuzzerTestOneInput(exact, len);
	free(exact);
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

	for (int i = 1; i < argc; i++)
		count += replay_folder(argv[i]);
	printf("%u inputs\n", count);
	return count > 0 ? 0 : 2;
}
