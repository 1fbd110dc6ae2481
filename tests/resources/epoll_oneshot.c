/* Registrations with EPOLLONESHOT: two have reported their events, of a pipe whose other end is closed and of a socket, and
 * report nothing until they are enabled again. Another has reported nothing yet. */
#include "resource.h"

#include <sys/epoll.h>
#include <sys/socket.h>

static int epoll, hung_up[2], pair[2], idle[2];

static int take_event(struct epoll_event *event, int wait_ms) { return epoll_wait(epoll, event, 1, wait_ms); }

static void control(int operation, int fd, uint64_t data) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = data};
    REQUIRE(epoll_ctl(epoll, operation, fd, &event) == 0);
}

static void set_up(void) {
    struct epoll_event event;
    epoll = epoll_create1(0);
    REQUIRE(pipe(hung_up) == 0 && pipe(idle) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    control(EPOLL_CTL_ADD, idle[0], 3);
    control(EPOLL_CTL_ADD, hung_up[0], 1);
    REQUIRE(write(hung_up[1], "x", 1) == 1 && take_event(&event, 0) == 1 && event.data.u64 == 1);
    REQUIRE(close(hung_up[1]) == 0);
    control(EPOLL_CTL_ADD, pair[0], 2);
    REQUIRE(write(pair[1], "x", 1) == 1 && take_event(&event, 0) == 1 && event.data.u64 == 2);
    REQUIRE(take_event(&event, 0) == 0);
}

static void check(void) {
    struct epoll_event event;
    REQUIRE(take_event(&event, 100) == 0, "%x of %llu", event.events, (unsigned long long)event.data.u64);
    REQUIRE(close(pair[1]) == 0 && take_event(&event, 100) == 0, "%x", event.events);
    REQUIRE(write(idle[1], "x", 1) == 1 && take_event(&event, PATIENCE_MS) == 1 && event.data.u64 == 3);
    REQUIRE(take_event(&event, 0) == 0);
    control(EPOLL_CTL_MOD, hung_up[0], 4);
    REQUIRE(take_event(&event, PATIENCE_MS) == 1 && event.data.u64 == 4 && event.events == (EPOLLIN | EPOLLHUP));
    control(EPOLL_CTL_MOD, pair[0], 5);
    REQUIRE(take_event(&event, PATIENCE_MS) == 1 && event.data.u64 == 5);
}
