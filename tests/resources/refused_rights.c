/* An epoll instance in flight in a Unix socket. The descriptor numbers that it has registered belong to no process:
 * not carried. */
#include "resource.h"

#include <sys/epoll.h>
#include <sys/socket.h>

static int pair[2];

static void set_up(void) {
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec bytes = {.iov_base = "e", .iov_len = 1};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    int epoll = epoll_create1(0);
    REQUIRE(epoll >= 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    *CMSG_FIRSTHDR(&message) = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &epoll, sizeof(int));
    REQUIRE(sendmsg(pair[0], &message, 0) == 1 && close(epoll) == 0);
}

static void check(void) {
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 0;
    struct iovec bytes = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct epoll_event event = {.events = EPOLLIN};
    int received;
    REQUIRE(recvmsg(pair[1], &message, 0) == 1 && byte == 'e' && CMSG_FIRSTHDR(&message));
    memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
    REQUIRE(epoll_ctl(received, EPOLL_CTL_ADD, pair[0], &event) == 0 && write(pair[1], "r", 1) == 1);
    REQUIRE(epoll_wait(received, &event, 1, 0) == 1);
}
