/* A netlink socket with an unread answer of the kernel: not carried. */
#include "resource.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

static int fd;

static void set_up(void) {
    struct {
        struct nlmsghdr header;
        struct rtgenmsg what;
    } request = {{sizeof request, RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, 7, 0}, {AF_UNSPEC}};
    fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    REQUIRE(fd >= 0 && send(fd, &request, sizeof request, 0) == sizeof request);
    REQUIRE(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, PATIENCE_MS) == 1);
}

static void check(void) {
    static char answer[32768];
    REQUIRE(recv(fd, answer, sizeof answer, MSG_DONTWAIT) > (ssize_t)sizeof(struct nlmsghdr));
}
