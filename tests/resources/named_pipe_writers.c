/* Read ends of named pipes without a writer. If no writer has ever opened the pipe, poll(2) and epoll(7) report nothing; if
 * the last writer has closed it, they report POLLHUP, after the data. */
#include "resource.h"

#include <sys/epoll.h>

static int never, closed, unread, epoll;

static int open_reader(const char *name) {
    REQUIRE(mkfifo(path_of(name), 0600) == 0);
    int reader = open(path_of(name), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    REQUIRE(reader >= 0);
    return reader;
}

static void write_once(const char *name, const char *text) {
    int writer = open(path_of(name), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    REQUIRE(writer >= 0 && write(writer, text, strlen(text)) == (ssize_t)strlen(text) && close(writer) == 0);
}

static void set_up(void) {
    struct epoll_event event = {.events = EPOLLIN};
    never = open_reader("never"), closed = open_reader("closed"), unread = open_reader("unread");
    write_once("closed", ""), write_once("unread", "data");
    epoll = epoll_create1(EPOLL_CLOEXEC);
    REQUIRE(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, never, &event) == 0);
}

static int events_of(int reader) {
    struct pollfd polled = {.fd = reader, .events = POLLIN};
    REQUIRE(poll(&polled, 1, 0) >= 0);
    return polled.revents;
}

static void check(void) {
    struct epoll_event event;
    char got[8];
    REQUIRE(events_of(never) == 0, "events %x", events_of(never));
    REQUIRE(epoll_wait(epoll, &event, 1, 0) == 0 && read(never, got, sizeof got) == 0);
    REQUIRE(events_of(closed) == POLLHUP, "events %x", events_of(closed));
    REQUIRE(events_of(unread) == (POLLIN | POLLHUP), "events %x", events_of(unread));
    REQUIRE(read(unread, got, sizeof got) == 4 && read(unread, got, sizeof got) == 0);
    write_once("never", "x");
    REQUIRE(events_of(never) == (POLLIN | POLLHUP), "events %x", events_of(never));
    REQUIRE(epoll_wait(epoll, &event, 1, 0) == 1 && read(never, got, sizeof got) == 1 && events_of(never) == POLLHUP);
}
