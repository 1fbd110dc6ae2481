/* Huge pages of hugetlbfs for a program that maps some. The program makes the node reserve them temporarily. Pages in
 * use or reserved stay until no process has them mapped. */
#include "resource.h"

#include <sys/prctl.h>

#include "huge_setting.h"

#define HUGE_BYTES (2UL << 20)
#define HUGE_PAGES_MAX 16

/* Runs `use` with more and more huge pages until it succeeds. Pages of a process that is ending may still be in use. */
static void with_huge_pages(int (*use)(void)) {
    struct huge_setting setting = huge_setting_begin();
    int enough = 0;
    for (unsigned long more = 1; !enough && more <= HUGE_PAGES_MAX; more++) {
        huge_setting_add(&setting, more);
        enough = use();
    }
    huge_setting_end(setting);
    REQUIRE(enough, "the kernel has too few huge pages");
}

/* Forks a child that ends with the process. */
static pid_t fork_bound(void) {
    pid_t self = getpid(), forked = fork();
    REQUIRE(forked >= 0);
    if (forked == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != self)) _exit(1);
    return forked;
}
