/* An epoll instance that watches a pipe whose reading end is only in flight in a socket (SCM_RIGHTS). */
#include "resource.h"

#include <sys/epoll.h>
#include <sys/socket.h>

static int epoll, pair[2], ends[2];

static void set_up(void) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec bytes = {"x", 1};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    epoll = epoll_create1(0);
    REQUIRE(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    REQUIRE(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event) == 0);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &ends[0], sizeof(int));
    REQUIRE(sendmsg(pair[1], &message, 0) == 1 && close(ends[0]) == 0);
}

static void check(void) {
    struct epoll_event event;
    REQUIRE(epoll_wait(epoll, &event, 1, 0) == 0 && write(ends[1], "y", 1) == 1);
    REQUIRE(epoll_wait(epoll, &event, 1, PATIENCE_MS) == 1 && event.data.u64 == 7);
}
