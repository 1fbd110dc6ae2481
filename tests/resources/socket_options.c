/* Rarely used socket options, each read and then set to another value: options of UDP, of listening and connected TCP,
 * and of Unix sockets. */
#include "resource.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif
#ifndef IPV6_FREEBIND
#define IPV6_FREEBIND 78
#endif

/* Numbers that the C library's headers may lack. */
enum { SO_NOFCS_ = 43, SO_TIMESTAMP_NEW_ = 63, SO_TIMESTAMPNS_NEW_ = 64, SO_TIMESTAMPING_NEW_ = 65, SO_TXREHASH_ = 74 };
enum { IP_RECVERR_RFC4884_ = 26, IP_LOCAL_PORT_RANGE_ = 51 };
enum { IPV6_FLOWINFO_ = 11, IPV6_ROUTER_ALERT_ISOLATE_ = 30, IPV6_RECVERR_RFC4884_ = 31, IPV6_FLOWINFO_SEND_ = 33 };
enum { IPV6_RECVFRAGSIZE_ = 77, TCP_FASTOPEN_CONNECT_ = 30, TCP_FASTOPEN_NO_COOKIE_ = 34, TCP_TX_DELAY_ = 37 };
enum { SO_TXTIME_ = 61, TCP_FASTOPEN_KEY_ = 33, UDP_ENCAP_ = 100, UDP_ENCAP_L2TPINUDP_ = 3 };
enum { TCP_RTO_MAX_MS_ = 44, TCP_RTO_MIN_US_ = 45, TCP_DELACK_MAX_US_ = 46 };

enum { UDP, UDP_V6, LISTENER, IDLE, IDLE_V6, UNIX_ONE, UNIX_OTHER, SOCKETS };

/* Options whose values are structures: a clock and flags for SO_TXTIME, and a key. */
static const struct {
    int clock;
    unsigned flags;
} transmit_time = {CLOCK_MONOTONIC, 2};
static const char fastopen_key[16] = "0123456789abcde";

static int sockets[SOCKETS], client, accepted, segment_bytes;
static struct sockaddr_in address = {.sin_family = AF_INET};

/* `value` is set before the fork and differs from the default. The check sets `later`, to show that the socket
 * works. */
static const struct {
    int socket, level, name, value, later;
} options[] = {
    {UDP, SOL_SOCKET, SO_NO_CHECK, 1, 0},
    {UDP, SOL_SOCKET, SO_BUSY_POLL, 50, 0},
    {UDP, SOL_SOCKET, SO_SELECT_ERR_QUEUE, 1, 0},
    {UDP, SOL_SOCKET, SO_INCOMING_CPU, 0, 1},
    {UDP, SOL_SOCKET, SO_BUF_LOCK, 2, 0},
    {UDP_V6, IPPROTO_IPV6, IPV6_FREEBIND, 1, 0},
    {UDP_V6, IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 0, 1},
    {UDP_V6, SOL_SOCKET, SO_BUF_LOCK, 3, 1},
    {LISTENER, IPPROTO_TCP, TCP_MAXSEG, 1000, 600},
    {LISTENER, SOL_SOCKET, SO_INCOMING_CPU, 1, 0},
    {LISTENER, SOL_SOCKET, SO_BUF_LOCK, 1, 0},
    {UDP, SOL_SOCKET, SO_DEBUG, 1, 0},
    {UDP, IPPROTO_UDP, UDP_ENCAP_, UDP_ENCAP_L2TPINUDP_, 0},
    {UDP, SOL_SOCKET, SO_TIMESTAMPNS_NEW_, 1, 0},
    {UDP, IPPROTO_IP, IP_OPTIONS, 0x010101, 0x01010101},
    {UDP, IPPROTO_IP, IP_RECVOPTS, 1, 0},
    {UDP, IPPROTO_IP, IP_RETOPTS, 1, 0},
    {UDP, IPPROTO_IP, IP_PASSSEC, 1, 0},
    {UDP, IPPROTO_IP, IP_CHECKSUM, 1, 0},
    {UDP, IPPROTO_IP, IP_RECVFRAGSIZE, 1, 0},
    {UDP, IPPROTO_IP, IP_RECVERR_RFC4884_, 1, 0},
    {UDP, IPPROTO_IP, IP_LOCAL_PORT_RANGE_, 40000 << 15, 0},
    {UDP_V6, SOL_SOCKET, SO_NOFCS_, 1, 0},
    {UDP_V6, SOL_SOCKET, SO_TIMESTAMPING_NEW_, 16, 8},
    {UDP_V6, IPPROTO_IPV6, IPV6_2292PKTINFO, 1, 0},
    {UDP_V6, IPPROTO_IPV6, IPV6_2292HOPOPTS, 1, 0},
    {UDP_V6, IPPROTO_IPV6, IPV6_2292DSTOPTS, 1, 0},
    {UDP_V6, IPPROTO_IPV6, IPV6_2292RTHDR, 1, 0},
    {UDP_V6, IPPROTO_IPV6, IPV6_2292HOPLIMIT, 1, 0},
    {UDP_V6, IPPROTO_IPV6, IPV6_FLOWINFO_, 1, 0},
    {UDP_V6, IPPROTO_IPV6, IPV6_ROUTER_ALERT_ISOLATE_, 1, 0},
    {UDP_V6, IPPROTO_IPV6, IPV6_RECVERR_RFC4884_, 1, 0},
    {UDP_V6, IPPROTO_IPV6, IPV6_FLOWINFO_SEND_, 1, 0},
    {UDP_V6, IPPROTO_IPV6, IPV6_RECVHOPOPTS, 1, 0},
    {UDP_V6, IPPROTO_IPV6, IPV6_RECVRTHDR, 1, 0},
    {UDP_V6, IPPROTO_IPV6, IPV6_RECVDSTOPTS, 1, 0},
    {UDP_V6, IPPROTO_IPV6, IPV6_RECVPATHMTU, 1, 0},
    {UDP_V6, IPPROTO_IPV6, IPV6_ADDR_PREFERENCES, 0x401, 0x402},
    {UDP_V6, IPPROTO_IPV6, IPV6_RECVFRAGSIZE_, 1, 0},
    {LISTENER, IPPROTO_TCP, TCP_WINDOW_CLAMP, 20000, 30000},
    {LISTENER, IPPROTO_TCP, TCP_SAVE_SYN, 1, 0},
    {LISTENER, IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE_, 1, 0},
    {LISTENER, IPPROTO_TCP, TCP_TX_DELAY_, 2000, 3000},
    {LISTENER, IPPROTO_TCP, TCP_RTO_MAX_MS_, 60000, 50000},
    {LISTENER, IPPROTO_TCP, TCP_RTO_MIN_US_, 100000, 80000},
    {LISTENER, IPPROTO_TCP, TCP_DELACK_MAX_US_, 100000, 80000},
    {IDLE, SOL_SOCKET, SO_TIMESTAMP_NEW_, 1, 0},
    {LISTENER, SOL_SOCKET, SO_TIMESTAMPING, 16, 8},
    {IDLE, SOL_SOCKET, SO_TXREHASH_, 0, 1},
    {IDLE, IPPROTO_IP, IP_OPTIONS, 0x010101, 0x01010101},
    {IDLE, IPPROTO_TCP, TCP_FASTOPEN_CONNECT_, 1, 0},
    {IDLE_V6, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 0, 1},
    {UNIX_ONE, SOL_SOCKET, SO_PASSSEC, 1, 0},
    {UNIX_ONE, SOL_SOCKET, SO_BUF_LOCK, 2, 0},
    {UNIX_OTHER, SOL_SOCKET, SO_PASSRIGHTS, 0, 1},
    {UNIX_OTHER, SOL_SOCKET, SO_BUF_LOCK, 0, 3},
};

#define OPTIONS (sizeof options / sizeof options[0])

static int option(int fd, int level, int name) {
    int value = 0;
    socklen_t length = sizeof value;
    REQUIRE(getsockopt(fd, level, name, &value, &length) == 0, "option %d", name);
    return value;
}

/* A kernel before Linux 6.16 has no SO_PASSRIGHTS. */
static int is_known(size_t index) {
    int value;
    socklen_t length = sizeof value;
    return getsockopt(sockets[options[index].socket], options[index].level, options[index].name, &value, &length) == 0 || errno != ENOPROTOOPT;
}

static void set_structures(void) {
    REQUIRE(setsockopt(sockets[UDP], SOL_SOCKET, SO_TXTIME_, &transmit_time, sizeof transmit_time) == 0);
    REQUIRE(setsockopt(sockets[LISTENER], IPPROTO_TCP, TCP_FASTOPEN_KEY_, fastopen_key, sizeof fastopen_key) == 0);
}

static void check_structure(int fd, int level, int name, const void *expected, socklen_t bytes) {
    char value[64];
    socklen_t length = sizeof value;
    REQUIRE(getsockopt(fd, level, name, value, &length) == 0 && length == bytes, "option %d has %u bytes", name, length);
    REQUIRE(memcmp(value, expected, bytes) == 0, "option %d", name);
}

static void set_up(void) {
    struct sockaddr_in6 address6 = {.sin6_family = AF_INET6, .sin6_addr = {{{0x20, 1, 0xd, 0xb8, [15] = 1}}}};
    socklen_t length = sizeof address;
    int segment = 1000;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sockets[UDP] = socket(AF_INET, SOCK_DGRAM, 0), sockets[UDP_V6] = socket(AF_INET6, SOCK_DGRAM, 0);
    sockets[IDLE] = socket(AF_INET, SOCK_STREAM, 0), sockets[IDLE_V6] = socket(AF_INET6, SOCK_STREAM, 0);
    sockets[LISTENER] = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, &sockets[UNIX_ONE]) == 0);
    for (size_t i = 0; i < OPTIONS; i++)
        REQUIRE(!is_known(i) || setsockopt(sockets[options[i].socket], options[i].level, options[i].name, &options[i].value, sizeof(int)) == 0, "option %zu", i);
    set_structures();
    /* The size of a buffer that the program has chosen, without the mark that it has. */
    REQUIRE(setsockopt(sockets[IDLE], SOL_SOCKET, SO_RCVBUF, &(int){40000}, sizeof(int)) == 0);
    REQUIRE(setsockopt(sockets[IDLE], SOL_SOCKET, SO_BUF_LOCK, &(int){0}, sizeof(int)) == 0);
    /* No network has this address. IPV6_FREEBIND allows it. */
    REQUIRE(bind(sockets[UDP_V6], (struct sockaddr *)&address6, sizeof address6) == 0);
    REQUIRE(bind(sockets[LISTENER], (struct sockaddr *)&address, sizeof address) == 0 && listen(sockets[LISTENER], 4) == 0);
    REQUIRE(getsockname(sockets[LISTENER], (struct sockaddr *)&address, &length) == 0);
    REQUIRE(setsockopt(client, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof segment) == 0);
    REQUIRE(connect(client, (struct sockaddr *)&address, sizeof address) == 0 && (accepted = accept(sockets[LISTENER], NULL, NULL)) >= 0);
    segment_bytes = option(client, IPPROTO_TCP, TCP_MAXSEG);
    REQUIRE(segment_bytes > 900 && segment_bytes <= 1000);
}

/* Sends a descriptor. Returns whether the kernel accepts it: it refuses (EPERM) if the receiver has cleared
 * SO_PASSRIGHTS. */
static int sends_descriptor(int from) {
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 'x';
    struct iovec vector = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &from, sizeof from);
    return sendmsg(from, &message, MSG_DONTWAIT) == 1;
}

static void check(void) {
    struct sockaddr_in6 other = {.sin6_family = AF_INET6, .sin6_addr = {{{0x20, 1, 0xd, 0xb8, [15] = 2}}}};
    int value, fresh = socket(AF_INET6, SOCK_DGRAM, 0);
    check_structure(sockets[UDP], SOL_SOCKET, SO_TXTIME_, &transmit_time, sizeof transmit_time);
    check_structure(sockets[LISTENER], IPPROTO_TCP, TCP_FASTOPEN_KEY_, fastopen_key, sizeof fastopen_key);
    for (size_t i = 0; i < OPTIONS; i++) {
        if (!is_known(i)) continue;
        value = option(sockets[options[i].socket], options[i].level, options[i].name);
        REQUIRE(value == options[i].value, "option %zu is %d", i, value);
        if (options[i].name == SO_PASSRIGHTS) REQUIRE(!sends_descriptor(sockets[UNIX_ONE]) && errno == EPERM, "the receiver accepts descriptors");
    }
    REQUIRE(option(sockets[IDLE], SOL_SOCKET, SO_RCVBUF) == 80000 && option(sockets[IDLE], SOL_SOCKET, SO_BUF_LOCK) == 0);
    value = option(client, IPPROTO_TCP, TCP_MAXSEG);
    REQUIRE(value == segment_bytes, "segments of %d bytes", value);
    REQUIRE(send(client, "x", 1, 0) == 1 && recv(accepted, &value, 1, 0) == 1);
    /* A new socket does not have IPV6_FREEBIND. */
    REQUIRE(bind(fresh, (struct sockaddr *)&other, sizeof other) == -1 && errno == EADDRNOTAVAIL && close(fresh) == 0);
    for (size_t i = 0; i < OPTIONS; i++) {
        if (!is_known(i)) continue;
        REQUIRE(setsockopt(sockets[options[i].socket], options[i].level, options[i].name, &options[i].later, sizeof(int)) == 0, "option %zu", i);
        REQUIRE(option(sockets[options[i].socket], options[i].level, options[i].name) == options[i].later, "option %zu", i);
    }
    for (size_t i = 0; i < OPTIONS; i++)
        if (options[i].name == SO_PASSRIGHTS && is_known(i)) REQUIRE(sends_descriptor(sockets[UNIX_ONE]), "the receiver does not accept descriptors");
}
