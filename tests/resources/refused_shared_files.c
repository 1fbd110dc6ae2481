/* Two children that share a descriptor table that their parent has left (unshare(2), CLONE_FILES): not carried. */
#include "resource.h"

#include <sched.h>
#include <sys/prctl.h>

static pid_t children[2];

static void set_up(void) {
    pid_t self = getpid();
    for (int which = 0; which < 2; which++) {
        REQUIRE((children[which] = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0)) >= 0);
        if (children[which] > 0) continue;
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != self) _exit(1);
        for (;;) pause();
    }
    REQUIRE(unshare(CLONE_FILES) == 0);
}

static void check(void) {
    for (int which = 0; which < 2; which++) {
        int status;
        REQUIRE(kill(children[which], SIGTERM) == 0 && waitpid(children[which], &status, 0) == children[which]);
        REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    }
}
