/* A process that has created a pid namespace for its children (unshare(2), CLONE_NEWPID), and has forked none yet. Its template
 * would be the first process there, which nothing can stop: not carried. */
#include "resource.h"

#include <sched.h>

static void set_up(void) { REQUIRE(unshare(CLONE_NEWPID) == 0); }

static void check(void) {
    int status;
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) _exit(getpid() == 1 ? 0 : 1);
    REQUIRE(waitpid(pid, &status, 0) == pid && status == 0, "a child process is not the first of the namespace");
}
