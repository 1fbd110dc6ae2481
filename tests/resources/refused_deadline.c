/* A main thread with deadline scheduling and without reset on fork, for which fork(2) itself fails: not carried. */
#include "deadline.h"

static void set_up(void) {
    struct attributes wanted = {sizeof wanted, SCHED_DEADLINE, 0, 0, 0, 40000000, 100000000, 100000000};
    REQUIRE(syscall(SYS_sched_setattr, 0, &wanted, 0) == 0);
}

static void check(void) {
    struct attributes now = {0};
    REQUIRE(syscall(SYS_sched_getattr, 0, &now, sizeof now, 0) == 0 && now.policy == SCHED_DEADLINE && now.runtime == 40000000);
    REQUIRE(fork() == -1 && errno == EAGAIN);
}
