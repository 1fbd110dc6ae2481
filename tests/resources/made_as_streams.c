/* A program that was started without standard input and standard error. The first files that it opens get their
 * numbers and are not standard streams. */
#include "resource.h"

#include <sys/epoll.h>
#include <sys/socket.h>

static int other;

static void set_up(void) {
    int ends[2];
    struct epoll_event readable = {.events = EPOLLIN, .data = {.u64 = 77}};
    REQUIRE(close(STDIN_FILENO) == 0 && close(STDERR_FILENO) == 0);
    REQUIRE(epoll_create1(EPOLL_CLOEXEC) == STDIN_FILENO);
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0 && ends[0] == STDERR_FILENO);
    other = ends[1];
    REQUIRE(epoll_ctl(STDIN_FILENO, EPOLL_CTL_ADD, STDERR_FILENO, &readable) == 0);
}

static void check(void) {
    struct epoll_event event;
    char byte = 0;
    REQUIRE(epoll_wait(STDIN_FILENO, &event, 1, 0) == 0);
    REQUIRE(write(other, "x", 1) == 1 && epoll_wait(STDIN_FILENO, &event, 1, PATIENCE_MS) == 1 && event.data.u64 == 77);
    REQUIRE(read(STDERR_FILENO, &byte, 1) == 1 && byte == 'x');
}
