/* Resource limits, nice value, scheduling policy with its reset on fork, timer slack, no huge pages. */
#include "resource.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>

static const struct {
    int resource;
    rlim_t soft, hard;
} limits[] = {{RLIMIT_CORE, 5000, 70000}, {RLIMIT_NOFILE, 200, 300}, {RLIMIT_STACK, 4 << 20, 64 << 20}, {RLIMIT_CPU, 1000, 2000}, {RLIMIT_SIGPENDING, 100, 200}};

#define COUNT (sizeof limits / sizeof limits[0])

static void set_up(void) {
    struct sched_param parameter = {0};
    for (size_t i = 0; i < COUNT; i++)
        REQUIRE(setrlimit((__rlimit_resource_t)limits[i].resource, &(struct rlimit){limits[i].soft, limits[i].hard}) == 0);
    REQUIRE(setpriority(PRIO_PROCESS, 0, 7) == 0 && sched_setscheduler(0, SCHED_BATCH | SCHED_RESET_ON_FORK, &parameter) == 0);
    REQUIRE(prctl(PR_SET_TIMERSLACK, 123456) == 0 && prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0);
}

static void check(void) {
    for (size_t i = 0; i < COUNT; i++) {
        struct rlimit now;
        REQUIRE(getrlimit((__rlimit_resource_t)limits[i].resource, &now) == 0);
        REQUIRE(now.rlim_cur == limits[i].soft && now.rlim_max == limits[i].hard, "limit %d: %lu", limits[i].resource, now.rlim_cur);
    }
    REQUIRE(getpriority(PRIO_PROCESS, 0) == 7, "nice %d", getpriority(PRIO_PROCESS, 0));
    REQUIRE(sched_getscheduler(0) == (SCHED_BATCH | SCHED_RESET_ON_FORK), "policy %x", sched_getscheduler(0));
    int status;
    pid_t pid = fork();
    if (pid == 0) _exit(sched_getscheduler(0) == SCHED_BATCH && getpriority(PRIO_PROCESS, 0) == 7 ? 0 : 1);
    REQUIRE(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0, "a forked process keeps the reset on fork");
    REQUIRE(prctl(PR_GET_TIMERSLACK) == 123456 && prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1);
}
