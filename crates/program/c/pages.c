/* The pages that a program offers for the injected calls of a capture. They are mapped once, and stay mapped. */
#include "library.h"

#include <sys/mman.h>
#include <unistd.h>

/* Size of the offered pages. They suffice for about 50 threads. Unused pages take no memory. */
#define PAGES_BYTES (256u << 10)

/* Maps the pages; returns MAP_FAILED if the kernel refuses. They are never writable and executable at once: some programs
** are not allowed to have such memory. */
static void *map_pages(size_t page_bytes) {
    char *pages = mmap(NULL, PAGES_BYTES, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return MAP_FAILED;
    if (mprotect(pages + page_bytes, PAGES_BYTES - page_bytes, PROT_READ | PROT_WRITE) < 0) {
        munmap(pages, PAGES_BYTES);
        return MAP_FAILED;
    }
    struct farfork_pages *marker = (struct farfork_pages *)(pages + page_bytes);
    marker->magic = FARFORK_PAGES_MAGIC;
    marker->address = (uint64_t)(uintptr_t)pages;
    marker->bytes = PAGES_BYTES;
    return pages;
}

void pages_offer(struct farfork_checkpoint_request *request) {
    static void *pages;
    if (!pages) pages = map_pages((size_t)sysconf(_SC_PAGESIZE));
    if (pages == MAP_FAILED) return;
    request->pages = (uint64_t)(uintptr_t)pages;
    request->pages_bytes = PAGES_BYTES;
}
