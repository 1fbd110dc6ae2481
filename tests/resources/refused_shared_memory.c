/* A child with its parent's address space (clone(2), CLONE_VM), which also has a child with its own: not carried. */
#include "resource.h"

#include <sched.h>

static char stack[65536] __attribute__((aligned(16)));
static uint32_t stop;
static pid_t self, other;

static int live(void *unused) {
    (void)unused;
    pid_t own = (pid_t)syscall(SYS_getpid), child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    for (;;) {
        if (child == 0 && syscall(SYS_getppid) != own) syscall(SYS_exit_group, 1);
        if (child != 0 && (__atomic_load_n(&stop, __ATOMIC_SEQ_CST) || syscall(SYS_getppid) != self)) break;
        usleep(1000);
    }
    syscall(SYS_kill, child, SIGKILL);
    return syscall(SYS_wait4, child, NULL, 0, NULL) == child ? 21 : 1;
}

static void set_up(void) {
    self = getpid();
    other = clone(live, stack + sizeof stack, CLONE_VM | CLONE_FILES | SIGCHLD, NULL);
    REQUIRE(other > 0);
}

static void check(void) {
    int status;
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    REQUIRE(waitpid(other, &status, 0) == other && WIFEXITED(status) && WEXITSTATUS(status) == 21);
}
