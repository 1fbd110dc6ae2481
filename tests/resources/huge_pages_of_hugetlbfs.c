/* Shared memory in huge pages of hugetlbfs, as databases have it, of a process and its child: carried, in ordinary pages. The node is
 * told to keep one aside for a moment: in use, it stays until nobody has it mapped. */
#include "resource.h"

#include <sys/prctl.h>

#define HUGE_BYTES (2UL << 20)
#define PAGES_MAX 16

static const char setting[] = "/proc/sys/vm/nr_hugepages";
static unsigned long before;
static volatile uint64_t *words;
static pid_t other;

static unsigned long kept(void) {
    char line[64] = "";
    REQUIRE(read_line(setting, "", line, sizeof line));
    return strtoul(line, NULL, 10);
}

static void keep(unsigned long pages) {
    char text[32];
    int file = open(setting, O_WRONLY | O_CLOEXEC), length = snprintf(text, sizeof text, "%lu", pages);
    REQUIRE(file >= 0 && write(file, text, (size_t)length) == length && close(file) == 0, "%s", setting);
}

static void set_up(void) {
    pid_t self = getpid();
    void *mapped = MAP_FAILED;
    int flags = MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB;
    before = kept();
    /* Some may still be another's that ends. */
    for (unsigned long more = 1; mapped == MAP_FAILED && more <= PAGES_MAX; more++) {
        keep(before + more);
        mapped = mmap(NULL, HUGE_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
    }
    keep(before);
    REQUIRE(mapped != MAP_FAILED, "the kernel finds no huge page");
    REQUIRE(area_has_flag(mapped, "ht"));
    words = (volatile uint64_t *)mapped;
    for (size_t at = 0; at < HUGE_BYTES / sizeof *words; at += 500) words[at] = at + 1;
    REQUIRE((other = fork()) >= 0);
    if (other > 0) return;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != self) _exit(1);
    while (words[7] != 8) usleep(1000);
    words[8] = 9;
    for (;;) pause();
}

static void check(void) {
    REQUIRE(area_has_flag((const void *)words, "ht") == !is_child);
    for (size_t at = 0; at < HUGE_BYTES / sizeof *words; at += 500) REQUIRE(words[at] == at + 1, "word %zu", at);
    REQUIRE(words[1] == 0);
    words[7] = 8;
    REQUIRE(COMES_TRUE(words[8] == 9), "a child of its own has it not");
    REQUIRE(kill(other, SIGKILL) == 0);
}
