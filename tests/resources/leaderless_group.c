/* A process group whose leader has ended and was waited for, as in a pipeline after its first command. Its members can
 * still get signals and be waited for by group. */
#include "resource.h"

#include <sys/prctl.h>

enum { LEADER, MEMBER, MEMBERS_CHILD, COUNT };

static struct {
    uint32_t is_ready[COUNT], signals[COUNT];
} *shared;

static pid_t pids[COUNT];
static int which;

static void count(int signal) {
    (void)signal;
    __atomic_add_fetch(&shared->signals[which], 1, __ATOMIC_SEQ_CST);
}

static __attribute__((noreturn)) void live(pid_t parent) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent || signal(SIGUSR1, count) == SIG_ERR) _exit(1);
    if (which == MEMBER) {
        pid_t self = getpid();
        if (fork() == 0) {
            which = MEMBERS_CHILD;
            live(self);
        }
    }
    __atomic_store_n(&shared->is_ready[which], 1, __ATOMIC_SEQ_CST);
    for (;;) pause();
}

static void set_up(void) {
    int status;
    pid_t self = getpid();
    shared = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(shared != MAP_FAILED && (pids[LEADER] = fork()) >= 0);
    if (pids[LEADER] == 0) {
        for (;;) pause();
    }
    REQUIRE(setpgid(pids[LEADER], 0) == 0 && (pids[MEMBER] = fork()) >= 0);
    if (pids[MEMBER] == 0) {
        which = MEMBER;
        if (setpgid(0, pids[LEADER]) != 0) _exit(1);
        live(self);
    }
    REQUIRE(COMES_TRUE(shared->is_ready[MEMBER] && shared->is_ready[MEMBERS_CHILD]));
    REQUIRE(kill(pids[LEADER], SIGKILL) == 0 && waitpid(pids[LEADER], &status, 0) == pids[LEADER]);
}

static void check(void) {
    int status;
    REQUIRE(getpgid(pids[MEMBER]) == pids[LEADER] && getpgrp() != pids[LEADER]);
    REQUIRE(kill(pids[LEADER], 0) == -1 && errno == ESRCH && waitpid(pids[LEADER], &status, 0) == -1 && errno == ECHILD);
    REQUIRE(kill(-pids[LEADER], SIGUSR1) == 0);
    REQUIRE(COMES_TRUE(shared->signals[MEMBER] == 1 && shared->signals[MEMBERS_CHILD] == 1));
    REQUIRE(kill(pids[MEMBER], SIGTERM) == 0);
    REQUIRE(waitpid(-pids[LEADER], &status, 0) == pids[MEMBER] && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}
