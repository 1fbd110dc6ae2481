/* Sockets by system calls that process.c does not make, with all kinds of options. */
#pragma once

#include "kinds.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/udp.h>

/* A socket option, with two values of which one is set. Some options do not apply to some sockets. */
static const struct {
    int level, option, value;
} more_options[] = {{SOL_SOCKET, SO_DONTROUTE, 1},      {SOL_SOCKET, SO_OOBINLINE, 1},          {SOL_SOCKET, SO_TIMESTAMP, 1},        {SOL_SOCKET, SO_TIMESTAMPNS, 1},
                    {SOL_SOCKET, SO_PASSSEC, 1},        {SOL_SOCKET, SO_RXQ_OVFL, 1},           {SOL_SOCKET, SO_BUSY_POLL, 9},        {SOL_SOCKET, SO_ZEROCOPY, 1},
                    {SOL_SOCKET, SO_MARK, 5},           {SOL_SOCKET, SO_REUSEPORT, 1},          {SOL_SOCKET, SO_INCOMING_CPU, 1},     {SOL_SOCKET, SO_TXREHASH, 1},
                    {SOL_SOCKET, SO_RESERVE_MEM, 8192}, {SOL_SOCKET, SO_BUF_LOCK, 1},           {SOL_SOCKET, SO_NO_CHECK, 1},         {SOL_SOCKET, SO_WIFI_STATUS, 1},
                    {IPPROTO_IP, IP_TOS, 16},           {IPPROTO_IP, IP_RECVTTL, 1},            {IPPROTO_IP, IP_PKTINFO, 1},          {IPPROTO_IP, IP_MTU_DISCOVER, 2},
                    {IPPROTO_IP, IP_FREEBIND, 1},       {IPPROTO_IP, IP_MULTICAST_TTL, 7},      {IPPROTO_IP, IP_MULTICAST_LOOP, 0},   {IPPROTO_IP, IP_RECVERR, 1},
                    {IPPROTO_IP, IP_MINTTL, 3},         {IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1}, {IPPROTO_IPV6, IPV6_UNICAST_HOPS, 9}, {IPPROTO_IPV6, IPV6_RECVPKTINFO, 1},
                    {IPPROTO_IPV6, IPV6_TCLASS, 8},     {IPPROTO_IPV6, IPV6_MTU_DISCOVER, 2},   {IPPROTO_IPV6, IPV6_RECVERR, 1},      {IPPROTO_TCP, TCP_MAXSEG, 1000},
                    {IPPROTO_TCP, TCP_SYNCNT, 3},       {IPPROTO_TCP, TCP_LINGER2, 9},          {IPPROTO_TCP, TCP_QUICKACK, 0},       {IPPROTO_TCP, TCP_USER_TIMEOUT, 7000},
                    {IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1}, {IPPROTO_TCP, TCP_FASTOPEN, 5}, {IPPROTO_TCP, TCP_NOTSENT_LOWAT, 900}, {IPPROTO_TCP, TCP_KEEPINTVL, 8},
                    {IPPROTO_TCP, TCP_KEEPCNT, 4},      {IPPROTO_TCP, TCP_WINDOW_CLAMP, 30000}, {IPPROTO_TCP, TCP_INQ, 1},            {IPPROTO_UDP, UDP_SEGMENT, 500},
                    {IPPROTO_UDP, UDP_GRO, 1},          {IPPROTO_UDP, UDP_NO_CHECK6_TX, 1}};

#define MORE_OPTIONS_MAX 8

static int with_more_options(int fd) {
    REQUIRE(fd >= 0);
    for (uint64_t left = below(MORE_OPTIONS_MAX); left > 0; left--) {
        size_t i = below(sizeof more_options / sizeof *more_options);
        (void)!setsockopt(fd, more_options[i].level, more_options[i].option, &more_options[i].value, sizeof(int));
    }
    return fd;
}

static struct sockaddr_in loopback_address(int fd) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    REQUIRE(bind(fd, (struct sockaddr *)&address, length) == 0 && getsockname(fd, (struct sockaddr *)&address, &length) == 0);
    return address;
}

/* Makes both ends of a connection, with data in transit. */
static void connect_to_itself(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = loopback_address(listener);
    REQUIRE(listen(with_more_options(listener), 3) == 0);
    for (int i = 0; i < 2; i++) {
        int client = with_more_options(socket(AF_INET, SOCK_STREAM, 0));
        REQUIRE(connect(client, (struct sockaddr *)&address, sizeof address) == 0);
        int server = with_more_options(i ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : (int)syscall(SYS_accept, listener, NULL, NULL));
        REQUIRE(server >= 0);
        if (one_in(2)) REQUIRE(send(client, "on its way", 10, 0) == 10);
        if (one_in(3)) REQUIRE(shutdown(server, SHUT_WR) == 0);
    }
}

static void make_udp_of_both_versions(void) {
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int four = with_more_options(socket(AF_INET, SOCK_DGRAM, 0)), unbound = with_more_options(socket(AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK, 0));
    struct sockaddr_in address = loopback_address(four);
    REQUIRE(bind(unbound, (struct sockaddr *)&six, sizeof six) == 0);
    if (one_in(2)) REQUIRE(connect(four, (struct sockaddr *)&address, sizeof address) == 0);
}

/* Sends datagrams and a file descriptor, which stay queued. */
static void send_messages(void) {
    int pair[2], passed = eventfd(3, 0);
    char text[3][8] = {"one", "two", "three"}, control[CMSG_SPACE(sizeof passed)] = {0};
    struct iovec parts[3] = {{text[0], 3}, {text[1], 3}, {text[2], 5}};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = &parts[0], .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &parts[1], .msg_iovlen = 2}}};
    struct msghdr with_rights = {.msg_iov = parts, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    REQUIRE(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0 && sendmmsg(pair[0], messages, 2, 0) == 2);
    REQUIRE(sendto(pair[0], text[2], 4, 0, NULL, 0) == 4 && recvmmsg(pair[1], messages, 1, 0, NULL) == 1);
    REQUIRE(recvfrom(pair[1], text[1], 8, 0, NULL, NULL) > 0 && recvmsg(pair[1], &messages[0].msg_hdr, MSG_PEEK) > 0);
    *CMSG_FIRSTHDR(&with_rights) = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof passed), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&with_rights)), &passed, sizeof passed);
    REQUIRE(sendmsg(pair[1], &with_rights, 0) > 0);
    with_more_options(pair[0]), with_more_options(pair[1]);
}

static void make_netlink(void) {
    struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = one_in(2) ? RTMGRP_LINK : 0};
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, one_in(2) ? NETLINK_ROUTE : NETLINK_KOBJECT_UEVENT);
    REQUIRE(bind(with_more_options(fd), (struct sockaddr *)&address, sizeof address) == 0);
    (void)!setsockopt(fd, SOL_NETLINK, NETLINK_PKTINFO, &(int){1}, sizeof(int));
}

/* Makes sockets that are neither bound nor connected. */
static void make_new_sockets(void) {
    with_more_options(socket(AF_INET, SOCK_STREAM, 0)), with_more_options(socket(AF_INET6, SOCK_STREAM, 0));
    with_more_options(socket(AF_INET, SOCK_DGRAM, 0)), with_more_options(socket(AF_UNIX, SOCK_STREAM, 0));
}

static void make_raw_socket(void) { REQUIRE(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP) >= 0); }
