/* Listening sockets with keys for MD5 signatures (TCP_MD5SIG): of an address, of a network, and of an IPv6 socket. They accept
 * a client that signs its segments, and no other. */
#include "resource.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#define KINDS 3
#define KEY "a secret key"

/* Longest wait for a client that must not be accepted, in milliseconds. */
#define REFUSAL_MS 500

union address {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
};

static int listeners[KINDS];

static union address loopback(int kind) {
    union address address = {.four = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}}};
    if (kind == 2) address.six = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    return address;
}

static void add_key(int fd, const union address *peer, int prefix_bits) {
    struct tcp_md5sig key = {.tcpm_keylen = sizeof KEY - 1};
    memcpy(&key.tcpm_addr, peer, sizeof *peer);
    memcpy(key.tcpm_key, KEY, sizeof KEY - 1);
    if (prefix_bits) key.tcpm_flags = TCP_MD5SIG_FLAG_PREFIX, key.tcpm_prefixlen = (uint8_t)prefix_bits;
    REQUIRE(setsockopt(fd, IPPROTO_TCP, prefix_bits ? TCP_MD5SIG_EXT : TCP_MD5SIG, &key, sizeof key) == 0);
}

static void set_up(void) {
    for (int kind = 0; kind < KINDS; kind++) {
        union address address = loopback(kind), peer = address;
        listeners[kind] = socket(address.any.sa_family, SOCK_STREAM, 0);
        REQUIRE(bind(listeners[kind], &address.any, sizeof address) == 0 && listen(listeners[kind], 4) == 0);
        if (kind == 1) peer.four.sin_addr.s_addr = htonl(0x7f000000);
        add_key(listeners[kind], &peer, kind == 1 ? 8 : 0);
    }
}

/* Returns whether a client with or without a key can connect to a listener. */
static int can_connect(int kind, int has_key) {
    union address address;
    socklen_t length = sizeof address;
    REQUIRE(getsockname(listeners[kind], &address.any, &length) == 0);
    int fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (has_key) add_key(fd, &address, 0);
    connect(fd, &address.any, length);
    struct pollfd polled = {fd, POLLOUT, 0};
    int is_connected = poll(&polled, 1, has_key ? PATIENCE_MS : REFUSAL_MS) == 1 && !(polled.revents & (POLLERR | POLLHUP));
    close(fd);
    return is_connected;
}

static void check(void) {
    for (int kind = 0; kind < KINDS; kind++) {
        REQUIRE(!can_connect(kind, 0), "listener %d", kind);
        REQUIRE(can_connect(kind, 1), "listener %d", kind);
    }
}
