/* Private memory of every kind: read-only, inaccessible with data, executable, of a file with and without written
 * pages, huge, never touched. Heap and stack grow further. Locked memory grows while it moves. A large address range is
 * only reserved, except a few pages with different protections.
 */
#include "../forked.h"

#include <setjmp.h>
#include <signal.h>

#define BYTES (64 * PAGE_BYTES)
#define HUGE_BYTES (4UL << 20)
#define RESERVED_BYTES (1UL << 40)

static uint64_t *read_only, *inaccessible, *clean_file, *written_file, *locked, *huge, *sparse, *heap, *reserved;
static int (*function)(void);
static uint64_t first_file_word;
static sigjmp_buf no_memory_there;

static void jump_out(int signal) {
    (void)signal;
    siglongjmp(no_memory_there, 1);
}

static int is_readable(volatile const uint64_t *at) {
    if (sigsetjmp(no_memory_there, 1)) return 0;
    (void)*at;
    return 1;
}

static uint64_t *filled(size_t bytes, uint64_t first) {
    uint64_t *at = (uint64_t *)map_anonymous(bytes);
    fill(at, bytes, first);
    return at;
}

/* Makes a function with the code `mov eax, 42; ret`. */
static void make_function(void) {
    static const unsigned char code[] = {0xb8, 42, 0, 0, 0, 0xc3};
    void *at = map_anonymous(PAGE_BYTES);
    memcpy(at, code, sizeof code);
    REQUIRE(mprotect(at, PAGE_BYTES, PROT_READ | PROT_EXEC) == 0);
    memcpy(&function, &at, sizeof function);
}

static uint64_t *map_own_file(int protection) {
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    void *at = mmap(NULL, 4 * PAGE_BYTES, protection, MAP_PRIVATE, fd, 0);
    REQUIRE(at != MAP_FAILED);
    close(fd);
    return (uint64_t *)at;
}

/* Returns a part of the reserved range, of two pages. Parts 0 to 2 are written, and part 1 is read-only afterwards. The
 * rest is untouched. */
static uint64_t *reserved_part(size_t part) {
    return reserved + part * 2 * PAGE_BYTES / sizeof *reserved;
}

static void reserve(void) {
    void *at = mmap(NULL, RESERVED_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(at != MAP_FAILED);
    reserved = (uint64_t *)at;
    for (size_t part = 0; part < 3; part++) {
        REQUIRE(mprotect(reserved_part(part), 2 * PAGE_BYTES, PROT_READ | PROT_WRITE) == 0);
        fill(reserved_part(part), 2 * PAGE_BYTES, 1100 + part);
    }
    REQUIRE(mprotect(reserved_part(1), 2 * PAGE_BYTES, PROT_READ) == 0);
}

static void check_reserved(void) {
    for (size_t part = 0; part < 3; part++) REQUIRE(holds(reserved_part(part), 2 * PAGE_BYTES, 1100 + part));
    fill(reserved_part(2), 2 * PAGE_BYTES, 1200);
    if (sigsetjmp(no_memory_there, 1) == 0) {
        *(volatile uint64_t *)reserved_part(1) = 1;
        REQUIRE(0, "a read-only neighbour was written");
    }
    REQUIRE(!is_readable(reserved_part(3)), "reserved memory is readable");
    REQUIRE(!is_readable(reserved + RESERVED_BYTES / sizeof *reserved - 1), "the end of reserved memory is readable");
    REQUIRE(mprotect(reserved_part(3), 2 * PAGE_BYTES, PROT_READ | PROT_WRITE) == 0);
    REQUIRE(is_zero(reserved_part(3), 2 * PAGE_BYTES) && holds(reserved_part(2), 2 * PAGE_BYTES, 1200));
}

static void set_up(void) {
    read_only = filled(BYTES, 100);
    REQUIRE(mprotect(read_only, BYTES, PROT_READ) == 0);
    inaccessible = filled(BYTES, 200);
    REQUIRE(mprotect(inaccessible, BYTES, PROT_NONE) == 0);
    locked = filled(4 * PAGE_BYTES, 500);
    REQUIRE(mlock(locked, 4 * PAGE_BYTES) == 0);
    huge = (uint64_t *)map_anonymous(HUGE_BYTES);
    REQUIRE(madvise(huge, HUGE_BYTES, MADV_HUGEPAGE) == 0);
    fill(huge, HUGE_BYTES, 600);
    sparse = (uint64_t *)map_anonymous(1UL << 30);
    sparse[12345678] = word_of(700);
    clean_file = map_own_file(PROT_READ);
    first_file_word = clean_file[0];
    written_file = map_own_file(PROT_READ | PROT_WRITE);
    written_file[PAGE_BYTES / sizeof *written_file] = word_of(800);
    heap = (uint64_t *)sbrk((intptr_t)BYTES);
    fill(heap, BYTES, 900);
    make_function();
    reserve();
}

static void check_protections(void) {
    signal(SIGSEGV, jump_out);
    REQUIRE(holds(read_only, BYTES, 100));
    if (sigsetjmp(no_memory_there, 1) == 0) {
        *(volatile uint64_t *)read_only = 1;
        REQUIRE(0, "read-only memory was written");
    }
    REQUIRE(!is_readable(inaccessible), "memory with PROT_NONE can be read");
    REQUIRE(mprotect(inaccessible, BYTES, PROT_READ) == 0 && holds(inaccessible, BYTES, 200), "PROT_NONE lost its data");
    check_reserved();
    signal(SIGSEGV, SIG_DFL);
    REQUIRE(function() == 42);
}

static void check_contents(void) {
    REQUIRE(holds(locked, 4 * PAGE_BYTES, 500));
    REQUIRE(holds(huge, HUGE_BYTES, 600));
    REQUIRE(sparse[12345678] == word_of(700) && sparse[0] == 0 && sparse[(1UL << 27) - 1] == 0);
    REQUIRE(clean_file[0] == first_file_word);
    REQUIRE(written_file[0] == first_file_word && written_file[PAGE_BYTES / sizeof *heap] == word_of(800));
    REQUIRE(memcmp((char *)written_file + 2 * PAGE_BYTES, (char *)clean_file + 2 * PAGE_BYTES, PAGE_BYTES) == 0);
    REQUIRE(holds(heap, BYTES, 900));
}

/* Grows the stack by four mebibytes. The parent never used this part. */
static __attribute__((noinline)) void grow_stack(void) {
    volatile char deep[4 << 20];
    for (size_t i = 0; i < sizeof deep; i += PAGE_BYTES) deep[i] = (char)(i >> 12);
    for (size_t i = 0; i < sizeof deep; i += PAGE_BYTES) REQUIRE(deep[i] == (char)(i >> 12), "the stack at %zu", i);
}

static void check_growth(void) {
    uint64_t *more = (uint64_t *)sbrk((intptr_t)BYTES);
    REQUIRE(more == heap + BYTES / sizeof *heap, "the heap has another end: %p", (void *)more);
    REQUIRE(is_zero(more, BYTES));
    fill(more, BYTES, 1000);
    REQUIRE(holds(more, BYTES, 1000) && holds(heap, BYTES, 900));
    grow_stack();
}

/* A child locks memory. When mremap(2) moves and enlarges it, the kernel fills it before the pager can see the move. */
static void check_growth_of_locked(void) {
    size_t bytes = 4 * PAGE_BYTES, more = 8 * PAGE_BYTES;
    REQUIRE(mlock(locked, bytes) == 0);
    uint64_t *place = (uint64_t *)map_anonymous(bytes + more);
    REQUIRE(mremap(locked, bytes, bytes + more, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
    REQUIRE(holds(place, bytes, 500) && is_zero(place + bytes / sizeof *place, more));
}

int main(void) {
    set_up();

    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);

    check_contents();
    check_protections();
    check_growth();
    check_growth_of_locked();
    finish(payload, 0);
}
