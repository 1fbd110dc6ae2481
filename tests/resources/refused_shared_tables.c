/* A child that has its address space and its descriptors in common with its parent (clone(2), CLONE_VM and CLONE_FILES): not
 * carried. */
#include "resource.h"

#include <sched.h>

static char stack[65536] __attribute__((aligned(16)));
static int stop;
static pid_t other;

static int live(void *parent) {
    while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST) && syscall(SYS_getppid) == *(pid_t *)parent) usleep(1000);
    return 21;
}

static void set_up(void) {
    static pid_t self;
    self = getpid();
    other = clone(live, stack + sizeof stack, CLONE_VM | CLONE_FILES | SIGCHLD, &self);
    REQUIRE(other > 0);
}

static void check(void) {
    int status;
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    REQUIRE(waitpid(other, &status, 0) == other && WIFEXITED(status) && WEXITSTATUS(status) == 21);
}
