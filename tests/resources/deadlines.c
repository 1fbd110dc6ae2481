/* Threads with deadline scheduling (SCHED_DEADLINE): the main thread, with reset on fork, and another thread with its
 * own period. The test also checks the nice values that they have without deadline scheduling. */
#include "deadline.h"

#include <sys/resource.h>

#define MS 1000000UL
#define RESETS_ON_FORK 1
#define TELLS_OF_OVERRUN 4

static const struct attributes main_thread = {sizeof main_thread, SCHED_DEADLINE, RESETS_ON_FORK, 0, 0, 20 * MS, 100 * MS, 100 * MS};
static const struct attributes other_thread = {sizeof other_thread, SCHED_DEADLINE, TELLS_OF_OVERRUN, 0, 0, 2 * MS, 50 * MS, 200 * MS};
static pid_t other;

static void *run(void *unused) {
    REQUIRE(syscall(SYS_sched_setattr, 0, &other_thread, 0) == 0);
    __atomic_store_n(&other, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
    for (;;) pause();
    return unused;
}

static void set_up(void) {
    pthread_t thread;
    REQUIRE(setpriority(PRIO_PROCESS, 0, 4) == 0);
    REQUIRE(pthread_create(&thread, NULL, run, NULL) == 0 && COMES_TRUE(__atomic_load_n(&other, __ATOMIC_ACQUIRE) != 0));
    REQUIRE(syscall(SYS_sched_setattr, 0, &main_thread, 0) == 0);
}

static void require(pid_t tid, const struct attributes *wanted) {
    struct attributes now = {0};
    REQUIRE(syscall(SYS_sched_getattr, tid, &now, sizeof now, 0) == 0 && now.policy == SCHED_DEADLINE, "policy %u", now.policy);
    REQUIRE(now.flags == wanted->flags, "flags %lx", now.flags);
    REQUIRE(now.runtime == wanted->runtime && now.deadline == wanted->deadline && now.period == wanted->period, "%lu of %lu ns", now.runtime, now.period);
}

static void check(void) {
    require(0, &main_thread);
    require(other, &other_thread);
    REQUIRE(getpriority(PRIO_PROCESS, 0) == 4 && getpriority(PRIO_PROCESS, (id_t)other) == 4);
}
