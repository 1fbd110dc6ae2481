/* Huge pages of hugetlbfs for a program that maps some. The node is told to keep them aside for a moment: in use, or reserved, they
 * stay until nobody has them mapped. */
#include "resource.h"

#include <sys/file.h>
#include <sys/prctl.h>

#define HUGE_BYTES (2UL << 20)
#define HUGE_PAGES_MAX 16

static const char huge_setting[] = "/proc/sys/vm/nr_hugepages";

static unsigned long huge_kept(void) {
    char line[64] = "";
    REQUIRE(read_line(huge_setting, "", line, sizeof line));
    return strtoul(line, NULL, 10);
}

static void huge_keep(int file, unsigned long pages) {
    char text[32];
    int length = snprintf(text, sizeof text, "%lu", pages);
    REQUIRE(pwrite(file, text, (size_t)length, 0) == length, "%s", huge_setting);
}

/* Runs `use` with ever more pages kept aside until it says that they were enough; some may still be another's that ends. */
static void with_huge_pages(int (*use)(void)) {
    int file = open(huge_setting, O_WRONLY | O_CLOEXEC), enough = 0;
    /* Two of us at once would each put back what the other has set. */
    REQUIRE(file >= 0 && flock(file, LOCK_EX) == 0, "%s", huge_setting);
    unsigned long before = huge_kept();
    for (unsigned long more = 1; !enough && more <= HUGE_PAGES_MAX; more++) {
        huge_keep(file, before + more);
        enough = use();
    }
    huge_keep(file, before);
    REQUIRE(close(file) == 0);
    REQUIRE(enough, "the kernel finds no huge page");
}

/* As fork(2), a child that ends with the process. */
static pid_t fork_bound(void) {
    pid_t self = getpid(), forked = fork();
    REQUIRE(forked >= 0);
    if (forked == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != self)) _exit(1);
    return forked;
}
