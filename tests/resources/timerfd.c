/* timerfds: one that expires later with an interval, with unread expirations, disarmed, absolute, in an epoll
 * instance, and one that a change of the wall clock cancels. */
#include "resource.h"
#include "time_left.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>

static int far_off, expired, disarmed, absolute, epoll, cancelled, cancelled_disarmed;

static int create(clockid_t clock, int flags, struct itimerspec when) {
    int fd = timerfd_create(clock, TFD_NONBLOCK);
    REQUIRE(fd >= 0 && timerfd_settime(fd, flags, &when, NULL) == 0);
    return fd;
}

static void set_up(void) {
    begin_arming();
    far_off = create(CLOCK_BOOTTIME, 0, (struct itimerspec){{5, 6}, {3600, 0}});
    expired = create(CLOCK_MONOTONIC, 0, (struct itimerspec){{0, 1000000}, {0, 1000000}});
    disarmed = create(CLOCK_REALTIME, 0, (struct itimerspec){{0, 0}, {0, 0}});
    long soon_s = (long)(arming_begun_ns / SECOND_NS) + 2000;
    absolute = create(CLOCK_MONOTONIC, TFD_TIMER_ABSTIME, (struct itimerspec){{0, 0}, {soon_s, 0}});
    long wall_s = (long)(now_ns(CLOCK_REALTIME) / 1000000000) + 3000;
    int flags = TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET;
    cancelled = create(CLOCK_REALTIME, flags, (struct itimerspec){{7, 8}, {wall_s, 0}});
    cancelled_disarmed = create(CLOCK_REALTIME, flags, (struct itimerspec){{0, 0}, {0, 0}});
    end_arming();
    struct epoll_event event = {.events = EPOLLIN, .data = {.u64 = 77}};
    epoll = epoll_create1(0);
    REQUIRE(epoll_ctl(epoll, EPOLL_CTL_ADD, expired, &event) == 0);
    usleep(10000);
}

/* Returns whether the last timerfd_settime(2) had the flags for an absolute timer that a clock change cancels. */
static int is_cancelled_by_clock(int fd) {
    char path[64], flags[64];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    REQUIRE(read_line(path, "settime flags:", flags, sizeof flags));
    return strtol(flags, NULL, 8) == (TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET);
}

static void check(void) {
    struct itimerspec now;
    struct epoll_event event;
    uint64_t ticks = 0;
    begin_asking();
    REQUIRE(timerfd_gettime(far_off, &now) == 0 && now.it_interval.tv_sec == 5 && now.it_interval.tv_nsec == 6);
    REQUIRE(may_be_left(now.it_value.tv_sec, 3600, 2), "%ld s left", now.it_value.tv_sec);
    begin_asking();
    REQUIRE(timerfd_gettime(absolute, &now) == 0 && may_be_left(now.it_value.tv_sec, 2000, 3), "%ld s left", now.it_value.tv_sec);
    REQUIRE(is_cancelled_by_clock(cancelled) && is_cancelled_by_clock(cancelled_disarmed) && !is_cancelled_by_clock(absolute));
    begin_asking();
    REQUIRE(timerfd_gettime(cancelled, &now) == 0 && now.it_interval.tv_sec == 7 && now.it_interval.tv_nsec == 8);
    REQUIRE(may_be_left(now.it_value.tv_sec, 3000, 3), "%ld s left", now.it_value.tv_sec);
    REQUIRE(timerfd_gettime(cancelled_disarmed, &now) == 0 && now.it_value.tv_sec == 0 && now.it_value.tv_nsec == 0);
    REQUIRE(read(far_off, &ticks, sizeof ticks) == -1 && errno == EAGAIN);
    REQUIRE(epoll_wait(epoll, &event, 1, PATIENCE_MS) == 1 && event.data.u64 == 77);
    REQUIRE(read(expired, &ticks, sizeof ticks) == sizeof ticks && ticks >= 10, "%lu ticks", ticks);
    REQUIRE(timerfd_gettime(disarmed, &now) == 0 && now.it_value.tv_sec == 0 && now.it_value.tv_nsec == 0);
    REQUIRE(timerfd_settime(disarmed, 0, &(struct itimerspec){{0, 0}, {0, 1000000}}, NULL) == 0);
    REQUIRE(poll(&(struct pollfd){.fd = disarmed, .events = POLLIN}, 1, PATIENCE_MS) == 1);
}
