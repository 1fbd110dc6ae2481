/* Memory that grows: the stack, the heap, and a mapping that grows downwards. */
#include "resource.h"

#define MEGABYTE (1UL << 20)

static char *below, *heap;

static void set_up(void) {
    char *room = map_private(64 * MEGABYTE, PROT_NONE);
    REQUIRE(munmap(room, 64 * MEGABYTE) == 0);
    below = (char *)mmap(room + 60 * MEGABYTE, PAGE_BYTES, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED_NOREPLACE, -1, 0);
    REQUIRE(below == room + 60 * MEGABYTE);
    below[100] = 'a';
    void *volatile first = malloc(1); /* libc takes its part of the heap before sbrk(2) below */
    free(first);
    heap = (char *)sbrk(MEGABYTE);
    heap[MEGABYTE - 1] = 'h';
}

static __attribute__((noinline)) void use_stack(void) {
    volatile char deep[6 * MEGABYTE];
    for (size_t i = sizeof deep; i > 0; i -= PAGE_BYTES) deep[i - 1] = (char)(i >> 12);
    for (size_t i = sizeof deep; i > 0; i -= PAGE_BYTES) REQUIRE(deep[i - 1] == (char)(i >> 12));
}

static void check(void) {
    REQUIRE(heap[MEGABYTE - 1] == 'h' && sbrk(MEGABYTE) == heap + MEGABYTE, "the heap has another end");
    heap[2 * MEGABYTE - 1] = 'i';
    REQUIRE(below[100] == 'a' && area_has_flag(below, "gd"));
    for (size_t down = 1; down < 2 * MEGABYTE; down += PAGE_BYTES / 2) below[-(long)down] = 'b';
    REQUIRE(below[-1] == 'b' && below[100] == 'a');
    use_stack();
}
