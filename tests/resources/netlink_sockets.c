/* Netlink sockets: a bound one with groups and options, an unbound one, and one of another kind and protocol with a
 * filter. The test requires that the kernel replies. */
#include "resource.h"

#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

/* Groups in which no events occur, so that none remains unread: an obsolete group, and a group of bridges. */
#define QUIET_GROUP 13
#define HIGH_GROUP 33
#define GROUP_WORDS 8

static int routes, events, unbound;
static struct sockaddr_nl address;

/* A filter that accepts only messages of more than 24 bytes. */
static struct sock_filter filter[] = {{BPF_LD | BPF_W | BPF_LEN, 0, 0, 0}, {BPF_JMP | BPF_JGT | BPF_K, 0, 1, 24}, {BPF_RET | BPF_K, 0, 0, ~0U}, {BPF_RET | BPF_K, 0, 0, 0}};

#define INSTRUCTIONS (sizeof filter / sizeof filter[0])
static uint32_t groups[GROUP_WORDS];

static struct sockaddr_nl address_of(int fd) {
    struct sockaddr_nl own = {0};
    socklen_t bytes = sizeof own;
    REQUIRE(getsockname(fd, (struct sockaddr *)&own, &bytes) == 0 && bytes == sizeof own);
    return own;
}

static int option(int fd, int level, int name) {
    int value = -1;
    socklen_t bytes = sizeof value;
    REQUIRE(getsockopt(fd, level, name, &value, &bytes) == 0);
    return value;
}

static void set_up(void) {
    int on = 1, high = HIGH_GROUP;
    struct sockaddr_nl wanted = {.nl_family = AF_NETLINK, .nl_groups = 1 << (QUIET_GROUP - 1)};
    socklen_t bytes = sizeof groups;
    routes = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    REQUIRE(routes >= 0 && bind(routes, (struct sockaddr *)&wanted, sizeof wanted) == 0);
    REQUIRE(setsockopt(routes, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &high, sizeof high) == 0);
    REQUIRE(setsockopt(routes, SOL_NETLINK, NETLINK_EXT_ACK, &on, sizeof on) == 0);
    REQUIRE(setsockopt(routes, SOL_NETLINK, NETLINK_NO_ENOBUFS, &on, sizeof on) == 0);
    REQUIRE(getsockopt(routes, SOL_NETLINK, NETLINK_LIST_MEMBERSHIPS, groups, &bytes) == 0);
    address = address_of(routes);
    events = socket(AF_NETLINK, SOCK_DGRAM | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT);
    REQUIRE(events >= 0 && setsockopt(events, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0);
    struct sock_fprog program = {INSTRUCTIONS, filter};
    REQUIRE(setsockopt(events, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0);
    REQUIRE(setsockopt(events, SOL_SOCKET, SO_LOCK_FILTER, &on, sizeof on) == 0);
    unbound = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    REQUIRE(unbound >= 0);
}

/* Requests the network interfaces, and requires that the first message of the reply is one. Each network has an
 * interface. */
static void ask(int fd) {
    struct {
        struct nlmsghdr header;
        struct rtgenmsg what;
    } request = {{sizeof request, RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, 7, 0}, {AF_UNSPEC}};
    union {
        struct nlmsghdr header;
        char bytes[32768];
    } answer;
    REQUIRE(send(fd, &request, sizeof request, 0) == sizeof request);
    ssize_t length = recv(fd, &answer, sizeof answer, 0);
    REQUIRE(length > (ssize_t)sizeof answer.header && answer.header.nlmsg_type == RTM_NEWLINK, "%zd bytes", length);
    REQUIRE(answer.header.nlmsg_seq == 7 && answer.header.nlmsg_pid == address_of(fd).nl_pid);
}

static void check(void) {
    uint32_t now[GROUP_WORDS] = {0};
    socklen_t bytes = sizeof now;
    struct sockaddr_nl own = address_of(routes);
    REQUIRE(memcmp(&own, &address, sizeof own) == 0 && own.nl_pid != 0, "port %u, groups %x", own.nl_pid, own.nl_groups);
    REQUIRE(getsockopt(routes, SOL_NETLINK, NETLINK_LIST_MEMBERSHIPS, now, &bytes) == 0 && memcmp(now, groups, sizeof now) == 0);
    REQUIRE(now[0] == 1u << (QUIET_GROUP - 1) && now[1] == 1u << (HIGH_GROUP - 33), "groups %x %x", now[0], now[1]);
    REQUIRE(option(routes, SOL_NETLINK, NETLINK_EXT_ACK) == 1 && option(routes, SOL_NETLINK, NETLINK_NO_ENOBUFS) == 1);
    REQUIRE(option(routes, SOL_NETLINK, NETLINK_CAP_ACK) == 0 && fcntl(routes, F_GETFD) == FD_CLOEXEC);
    REQUIRE(option(events, SOL_SOCKET, SO_PROTOCOL) == NETLINK_KOBJECT_UEVENT && option(events, SOL_SOCKET, SO_TYPE) == SOCK_DGRAM);
    REQUIRE(option(events, SOL_SOCKET, SO_PASSCRED) == 1 && fcntl(events, F_GETFL) & O_NONBLOCK && address_of(events).nl_pid == 0);
    struct sock_filter filtered[INSTRUCTIONS];
    bytes = INSTRUCTIONS; /* SO_GET_FILTER counts instructions, not bytes */
    REQUIRE(getsockopt(events, SOL_SOCKET, SO_GET_FILTER, filtered, &bytes) == 0 && bytes == INSTRUCTIONS);
    REQUIRE(option(events, SOL_SOCKET, SO_LOCK_FILTER) == 1);
    REQUIRE(memcmp(filtered, filter, sizeof filter) == 0, "the filter has changed");
    REQUIRE(address_of(unbound).nl_pid == 0);
    ask(routes), ask(unbound);
    int group = HIGH_GROUP;
    bytes = sizeof now;
    REQUIRE(setsockopt(routes, SOL_NETLINK, NETLINK_DROP_MEMBERSHIP, &group, sizeof group) == 0);
    REQUIRE(getsockopt(routes, SOL_NETLINK, NETLINK_LIST_MEMBERSHIPS, now, &bytes) == 0 && now[0] == 1u << (QUIET_GROUP - 1) && now[1] == 0);
    REQUIRE(setsockopt(events, SOL_SOCKET, SO_DETACH_FILTER, &group, sizeof group) == -1 && errno == EPERM, "a locked filter can be removed");
}
