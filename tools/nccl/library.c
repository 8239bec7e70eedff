/* SPDX-License-Identifier: Apache-2.0 */
/*
 * library.c - opens an unmodified libnccl.so.2 and redirects its CUDA runtime to the emulation.
 *
 * Theory of operation. NVIDIA links libcudart statically into libnccl.so.2 but does not strip
 * .symtab, which has the address of every cuda*() function. dlopen() loads the library without a
 * GPU. Then the first bytes of each such function are overwritten with a jump to the function of
 * that name in cuda.c, or to a stub that ends the process with the name. Only the mapping in memory
 * is changed, not the file. All other code of the library runs as NVIDIA compiled it.
 */
#include "emulation.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void *library_handle;
static char *library_base;
static struct symbol *library_symbols; /* by address */
static size_t library_symbol_count;

/* ---- symbols --------------------------------------------------------------------------------- */

static int library_compare(const void *a, const void *b)
{
	const struct symbol *x = a, *y = b;

	return (x->address > y->address) - (x->address < y->address);
}

/* The file stays mapped, because symbols point to their names in it. */
static const char *library_map_file(const char *path, size_t *bytes)
{
	struct stat info;
	void *file;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &info))
		emulation_fail("%s: %s", path, strerror(errno));
	*bytes = (size_t)info.st_size;
	file = mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, fd, 0);
	if (file == MAP_FAILED)
		emulation_fail("%s: %s", path, strerror(errno));
	close(fd);
	return file;
}

static void library_read_symbols(const char *path)
{
	size_t bytes;
	const char *file = library_map_file(path, &bytes);
	const Elf64_Ehdr *header = (const void *)file;
	const Elf64_Shdr *sections = (const void *)(file + header->e_shoff);

	for (unsigned i = 0; i < header->e_shnum; i++) {
		const Elf64_Shdr *section = &sections[i];
		const Elf64_Sym *symbols = (const void *)(file + section->sh_offset);
		size_t count = section->sh_size / sizeof(*symbols);

		if (section->sh_type != SHT_SYMTAB)
			continue;
		library_symbols = emulation_alloc(count * sizeof(*library_symbols));
		for (size_t k = 0; k < count; k++) {
			unsigned type = ELF64_ST_TYPE(symbols[k].st_info);

			if ((type != STT_FUNC && type != STT_OBJECT) || !symbols[k].st_shndx)
				continue;
			library_symbols[library_symbol_count++] = (struct symbol){
				.name = file + sections[section->sh_link].sh_offset +
					symbols[k].st_name,
				.address = library_base + symbols[k].st_value,
				.bytes = symbols[k].st_size,
			};
		}
	}
	if (!library_symbol_count)
		emulation_fail("%s: stripped: it has no .symtab; use NVIDIA's wheel", path);
	qsort(library_symbols, library_symbol_count, sizeof(*library_symbols), library_compare);
}

const struct symbol *library_symbol(const char *name)
{
	for (size_t i = 0; i < library_symbol_count; i++)
		if (!strcmp(library_symbols[i].name, name))
			return &library_symbols[i];
	return NULL;
}

const char *library_name_at(const void *address)
{
	struct symbol key = { .address = (void *)(uintptr_t)address };
	const struct symbol *symbol = bsearch(&key, library_symbols, library_symbol_count,
					      sizeof(*library_symbols), library_compare);

	return symbol ? symbol->name : "?";
}

/* ---- redirection ----------------------------------------------------------------------------- */

enum { LIBRARY_JUMP_BYTES = 14, LIBRARY_STUB_BYTES = 32, LIBRARY_STUB_PAGE_BYTES = 65536 };

/* jmp *0(%rip), followed by the address */
static void library_write_jump(unsigned char *at, const void *to)
{
	static const unsigned char jump[] = { 0xff, 0x25, 0, 0, 0, 0 };

	memcpy(at, jump, sizeof(jump));
	memcpy(at + sizeof(jump), &to, sizeof(to));
}

__attribute__((noreturn)) static void library_missing(const char *name)
{
	emulation_fail("NCCL %d called %s(), which is not emulated; tools/nccl/README.md says "
		       "where to add it",
		       library_version(), name);
}

void *library_stub(const char *name)
{
	static unsigned char *next, *end;
	static const unsigned char load_rdi[] = { 0x48, 0xbf }; /* movabs $name, %rdi */
	unsigned char *stub;
	char *name_copy = strdup(name);

	if (!name_copy)
		emulation_fail("out of memory");
	if (end - next < LIBRARY_STUB_BYTES) {
		next = mmap(NULL, LIBRARY_STUB_PAGE_BYTES, PROT_READ | PROT_WRITE | PROT_EXEC,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (next == MAP_FAILED)
			emulation_fail("executable memory is not available: %s", strerror(errno));
		end = next + LIBRARY_STUB_PAGE_BYTES;
	}
	stub = next;
	next += LIBRARY_STUB_BYTES;
	memcpy(stub, load_rdi, sizeof(load_rdi));
	memcpy(stub + sizeof(load_rdi), &name_copy, sizeof(name_copy));
	library_write_jump(stub + sizeof(load_rdi) + sizeof(name_copy), (void *)library_missing);
	return stub;
}

/* True for functions like cudaMalloc(), false for internal functions of libcudart. */
static bool library_is_runtime_call(const struct symbol *symbol)
{
	return !strncmp(symbol->name, "cuda", 4) && symbol->name[4] >= 'A' &&
	       symbol->name[4] <= 'Z' && symbol->bytes >= LIBRARY_JUMP_BYTES;
}

static void *library_replacement(const char *name)
{
	for (const struct replacement *item = cuda_runtime; item->name; item++)
		if (!strcmp(item->name, name))
			return item->function;
	return library_stub(name);
}

static void library_redirect(const char *path)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), low = UINTPTR_MAX, high = 0;
	void *start;
	size_t bytes;

	for (size_t i = 0; i < library_symbol_count; i++) {
		uintptr_t at = (uintptr_t)library_symbols[i].address;

		if (!library_is_runtime_call(&library_symbols[i]))
			continue;
		low = at < low ? at : low;
		high = at + library_symbols[i].bytes > high ? at + library_symbols[i].bytes : high;
	}
	if (!high)
		emulation_fail("%s: libcudart is not statically linked: .symtab has no cuda*() "
			       "function; use NVIDIA's wheel",
			       path);
	low &= ~(page - 1);
	high = (high + page - 1) & ~(page - 1);
	start = library_base + (low - (uintptr_t)library_base);
	bytes = high - low;
	if (mprotect(start, bytes, PROT_READ | PROT_WRITE | PROT_EXEC))
		emulation_fail("%s: its code cannot be made writable: %s", path, strerror(errno));
	for (size_t i = 0; i < library_symbol_count; i++)
		if (library_is_runtime_call(&library_symbols[i]))
			library_write_jump(library_symbols[i].address,
					   library_replacement(library_symbols[i].name));
	if (mprotect(start, bytes, PROT_READ | PROT_EXEC))
		emulation_fail("%s: %s", path, strerror(errno));
}

void library_open(const char *path)
{
	struct link_map *map;

	/* NCCL opens these libraries by name, and gets the ones that this program is linked with.
	 * These calls prevent the linker from dropping them. */
	if (cuInit(0) || nvmlInit_v2())
		emulation_fail("libcuda.so and libnvidia-ml.so.1 are not those of the emulation");
	library_handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library_handle)
		emulation_fail("%s", dlerror());
	if (dlinfo(library_handle, RTLD_DI_LINKMAP, &map))
		emulation_fail("%s: %s", path, dlerror());
	library_base = (char *)map->l_addr;
	library_read_symbols(path);
	library_redirect(path);
}

void *library_function(const char *name)
{
	void *function = dlsym(library_handle, name);

	if (!function)
		emulation_fail("libnccl.so.2 has no %s()", name);
	return function;
}

int library_version(void)
{
	static int version;
	int (*get)(int *);

	if (!version) {
		get = (int (*)(int *))library_function("ncclGetVersion");
		if (get(&version))
			emulation_fail("ncclGetVersion() failed");
	}
	return version;
}
