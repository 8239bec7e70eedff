/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcuda.c - libcuda.so for NCCL up to 2.20, which opens the driver itself. NCCL looks up all
 * other functions with cuGetProcAddress(), from cuda_driver.c.
 */
#define EXPORT __attribute__((visibility("default")))

void *cuda_driver_function(const char *name); /* in the program */
int cuda_driver_version(void);

EXPORT int cuInit(unsigned flags);
EXPORT int cuDriverGetVersion(int *version);
EXPORT int cuGetProcAddress(const char *name, void **function, int version,
			    unsigned long long flags);

int cuInit(unsigned flags)
{
	(void)flags;
	return 0;
}

int cuDriverGetVersion(int *version)
{
	*version = cuda_driver_version();
	return 0;
}

int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags)
{
	(void)version;
	(void)flags;
	*function = cuda_driver_function(name);
	return 0;
}
