/* Private memory in huge pages of hugetlbfs: written, read-only and untouched, and partly shared copy-on-write with a
 * child process. Children get it in ordinary pages. The parent has exactly the huge pages that it reserved. If its
 * seed kept one, the parent could not write. */
#include "huge_pages.h"

enum { WRITTEN, READ_ONLY, UNTOUCHED, PAGES };

static const uint64_t ASKED = 1, ANSWERED = 2;

static char *area;
static volatile uint64_t *told; /* request to the child process and its reply, in ordinary memory */
static pid_t other;

static volatile uint64_t *words(int page) { return (volatile uint64_t *)(void *)(area + (size_t)page * HUGE_BYTES); }

static int map(void) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB;
    void *mapped = mmap(NULL, PAGES * HUGE_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
    area = (char *)mapped;
    return mapped != MAP_FAILED;
}

static void fill(int page, uint64_t first) {
    for (size_t at = 0; at < HUGE_BYTES / sizeof first; at += 500) words(page)[at] = first + at;
}

static void require_filled(int page, uint64_t first) {
    for (size_t at = 0; at < HUGE_BYTES / sizeof first; at += 500)
        REQUIRE(words(page)[at] == first + at, "page %d, word %zu", page, at);
    REQUIRE(words(page)[1] == 0);
}

/* Replies to requests in the child process. It only reads its pages: it has no huge page for a write. */
__attribute__((noreturn)) static void answer(void) {
    for (;;) {
        while (*told != ASKED) usleep(1000);
        require_filled(READ_ONLY, 7);
        *told = ANSWERED;
    }
}

static void set_up(void) {
    void *shared = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(shared != MAP_FAILED);
    told = (volatile uint64_t *)shared;
    with_huge_pages(map);
    REQUIRE(area_has_flag(area, "ht"));
    fill(READ_ONLY, 7);
    REQUIRE(mprotect(area + READ_ONLY * HUGE_BYTES, HUGE_BYTES, PROT_READ) == 0);
    REQUIRE(madvise(area + READ_ONLY * HUGE_BYTES, HUGE_BYTES, MADV_DONTDUMP) == 0);
    if ((other = fork_bound()) == 0) answer();
    /* Written only after the fork: a page from before it would be shared with the child process, and the next write to
     * it would need another huge page. */
    fill(WRITTEN, 5);
}

static void check(void) {
    for (int page = 0; page < PAGES; page++) {
        REQUIRE(area_has_flag((const void *)words(page), "ht") == !is_child, "page %d", page);
        REQUIRE(area_has_flag((const void *)words(page), "dd") == (page == READ_ONLY), "page %d", page);
    }
    require_filled(WRITTEN, 5);
    require_filled(READ_ONLY, 7);
    fill(WRITTEN, is_child ? 11 : 13);
    require_filled(WRITTEN, is_child ? 11 : 13);
    for (size_t at = 0; at < HUGE_BYTES / sizeof(uint64_t); at += 512) REQUIRE(words(UNTOUCHED)[at] == 0);
    fill(UNTOUCHED, 17);
    require_filled(UNTOUCHED, 17);
    *told = ASKED;
    REQUIRE(COMES_TRUE(*told == ANSWERED), "the child process does not share the memory");
    REQUIRE(kill(other, SIGKILL) == 0);
}
