/* Interval timers: one that expires much later, with its remaining time and interval, and one that expires
 * repeatedly. */
#include "resource.h"
#include "time_left.h"

#include <sys/time.h>

static volatile sig_atomic_t rings;

static void ring(int signal) {
    (void)signal;
    rings++;
}

static void set_up(void) {
    struct itimerval hour = {.it_interval = {.tv_sec = 7, .tv_usec = 5000}, .it_value = {.tv_sec = 3600}};
    struct itimerval often = {.it_interval = {.tv_usec = 20000}, .it_value = {.tv_usec = 20000}};
    struct sigaction action = {.sa_handler = ring, .sa_flags = SA_RESTART};
    REQUIRE(sigaction(SIGVTALRM, &action, NULL) == 0 && sigaction(SIGPROF, &action, NULL) == 0);
    begin_arming();
    REQUIRE(setitimer(ITIMER_REAL, &hour, NULL) == 0 && setitimer(ITIMER_PROF, &often, NULL) == 0);
    end_arming();
}

static void check(void) {
    struct itimerval now;
    begin_asking();
    REQUIRE(getitimer(ITIMER_REAL, &now) == 0);
    REQUIRE(now.it_interval.tv_sec == 7 && now.it_interval.tv_usec == 5000, "every %ld s", now.it_interval.tv_sec);
    /* If the child has its own CLOCK_MONOTONIC, that clock began at the parent's value. */
    REQUIRE(may_be_left(now.it_value.tv_sec, 3600, 2), "%ld s left", now.it_value.tv_sec);
    int before = rings;
    while (rings == before) continue; /* ITIMER_PROF counts processor time */
    REQUIRE(getitimer(ITIMER_VIRTUAL, &now) == 0 && now.it_value.tv_sec == 0 && now.it_value.tv_usec == 0);
}
