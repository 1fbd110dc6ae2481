/* A descriptor on its way in a Unix socket (SCM_RIGHTS). */
#include "resource.h"

#include <sys/socket.h>

static int pair[2], ends[2];

static void set_up(void) {
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec bytes = {.iov_base = "p", .iov_len = 1};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && pipe(ends) == 0);
    *CMSG_FIRSTHDR(&message) = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &ends[0], sizeof(int));
    REQUIRE(sendmsg(pair[0], &message, 0) == 1 && close(ends[0]) == 0);
}

static void check(void) {
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 0;
    struct iovec bytes = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    int received;
    REQUIRE(recvmsg(pair[1], &message, 0) == 1 && byte == 'p' && CMSG_FIRSTHDR(&message));
    memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
    REQUIRE(write(ends[1], "x", 1) == 1 && read(received, &byte, 1) == 1 && byte == 'x');
}
