/* Guard pages (MADV_GUARD_INSTALL) in memory that fork(2) wipes (MADV_WIPEONFORK). A child lacks them, as a child of fork(2)
 * does. */
#include "resource.h"

#define GUARD_INSTALL 102 /* since Linux 6.13; libc may lack it */

static char *area;
static int pipe_ends[2];

static void set_up(void) {
    area = map_private(8 * PAGE_BYTES, PROT_READ | PROT_WRITE);
    memset(area, 'd', 8 * PAGE_BYTES);
    REQUIRE(pipe(pipe_ends) == 0 && madvise(area, 8 * PAGE_BYTES, MADV_WIPEONFORK) == 0);
    REQUIRE(madvise(area + 2 * PAGE_BYTES, 2 * PAGE_BYTES, GUARD_INSTALL) == 0);
}

/* Whether this process can read a page. is_readable() would ask a child of fork(2). */
static int is_readable_here(size_t page) {
    char byte;
    ssize_t written = write(pipe_ends[1], area + page * PAGE_BYTES, 1);
    REQUIRE(written == 1 ? read(pipe_ends[0], &byte, 1) == 1 : errno == EFAULT);
    return written == 1;
}

/* What a child of fork(2) finds is the reference. */
static int has_wiped_memory(void) {
    for (size_t page = 0; page < 8; page++) {
        if (!is_readable_here(page) || area[page * PAGE_BYTES] != 0) return 0;
    }
    return 1;
}

static void check(void) {
    int status;
    pid_t forked = fork();
    REQUIRE(forked >= 0);
    if (forked == 0) _exit(has_wiped_memory());
    REQUIRE(waitpid(forked, &status, 0) == forked && WIFEXITED(status) && WEXITSTATUS(status) == 1, "fork(2) keeps the guards");
    if (is_child) {
        REQUIRE(has_wiped_memory(), "a guard page or contents in wiped memory");
    } else {
        REQUIRE(!is_readable_here(2) && !is_readable_here(3) && area[0] == 'd');
    }
}
