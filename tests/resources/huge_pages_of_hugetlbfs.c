/* Shared memory of a process and its child in huge pages of hugetlbfs, as databases use it. Children get it in
 * ordinary pages. */
#include "huge_pages.h"

static volatile uint64_t *words;
static pid_t other;

static int map(void) {
    void *mapped = mmap(NULL, HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    words = (volatile uint64_t *)mapped;
    return mapped != MAP_FAILED;
}

static void set_up(void) {
    with_huge_pages(map);
    REQUIRE(area_has_flag((const void *)words, "ht"));
    for (size_t at = 0; at < HUGE_BYTES / sizeof *words; at += 500) words[at] = at + 1;
    if ((other = fork_bound()) > 0) return;
    while (words[7] != 8) usleep(1000);
    words[8] = 9;
    for (;;) pause();
}

static void check(void) {
    REQUIRE(area_has_flag((const void *)words, "ht") == !is_child);
    for (size_t at = 0; at < HUGE_BYTES / sizeof *words; at += 500) REQUIRE(words[at] == at + 1, "word %zu", at);
    REQUIRE(words[1] == 0);
    words[7] = 8;
    REQUIRE(COMES_TRUE(words[8] == 9), "the child process does not share the memory");
    REQUIRE(kill(other, SIGKILL) == 0);
}
