/* A timerfd that a change of the wall clock cancels, and that has expired or was cancelled: not carried. */
#include "resource.h"

#include <sys/timerfd.h>

static int fd;

static void set_up(void) {
    struct itimerspec past = {{0, 0}, {1, 0}};
    fd = timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK);
    REQUIRE(fd >= 0 && timerfd_settime(fd, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, &past, NULL) == 0);
    REQUIRE(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, PATIENCE_MS) == 1);
}

static void check(void) {
    uint64_t ticks;
    REQUIRE(read(fd, &ticks, sizeof ticks) == sizeof ticks && ticks == 1, "%lu ticks", ticks);
}
