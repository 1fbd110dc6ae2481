/* More open files than one message can contain and than the initial limit allows: pipes with different contents, and
 * files that a child opens itself. The limits are unchanged. */
#include "resource.h"

#include <sys/resource.h>
#include <sys/timerfd.h>

enum { PIPES = 700, TIMERS = 300, LIMIT = 2000 };

static int pipes[PIPES][2], timers[TIMERS];

static void set_up(void) {
    struct rlimit limit = {LIMIT, LIMIT};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0, "fewer than %d open files are allowed here", LIMIT);
    for (uint32_t which = 0; which < PIPES; which++) {
        REQUIRE(pipe2(pipes[which], O_NONBLOCK) == 0);
        REQUIRE(write(pipes[which][1], &which, sizeof which) == sizeof which);
    }
    for (uint32_t which = 0; which < TIMERS; which++) REQUIRE((timers[which] = timerfd_create(CLOCK_MONOTONIC, 0)) >= 0);
}

static void check(void) {
    struct rlimit limit;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == LIMIT && limit.rlim_max == LIMIT);
    for (uint32_t which = 0; which < PIPES; which++) {
        uint32_t found;
        REQUIRE(read(pipes[which][0], &found, sizeof found) == sizeof found && found == which, "pipe %u", which);
        REQUIRE(write(pipes[which][1], &which, sizeof which) == sizeof which);
    }
    for (uint32_t which = 0; which < TIMERS; which++) {
        struct itimerspec left;
        REQUIRE(timerfd_gettime(timers[which], &left) == 0, "timer %u", which);
    }
}
