/* TCP connections over loopback within the process, of IPv4 and IPv6: from a socket that still listens and from a
 * closed one. They have data in flight, also more than a new socket has room for; one end shut down; options; and an
 * offset for peeking, which a peek moves. */
#include "resource.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define MANY_BYTES (320 << 10)

static int listener, client, server, other_client, other_server, client_6, server_6;
static const int peek_offset = 3;
static struct sockaddr_in own, theirs;
static char many[MANY_BYTES];

static void connect_both(struct sockaddr *address, socklen_t length, int through, int *one, int *two) {
    REQUIRE(bind(through, address, length) == 0 && listen(through, 1) == 0 && getsockname(through, address, &length) == 0);
    *one = socket(address->sa_family, SOCK_STREAM, 0);
    REQUIRE(connect(*one, address, length) == 0);
    *two = accept4(through, NULL, NULL, SOCK_NONBLOCK);
    REQUIRE(*two >= 0);
}

static int readable(int fd) {
    int bytes = 0;
    REQUIRE(ioctl(fd, FIONREAD, &bytes) == 0);
    return bytes;
}

static void set_up(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct sockaddr_in again = address;
    struct sockaddr_in6 address_6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    socklen_t length = sizeof own;
    int on = 1, closed = socket(AF_INET, SOCK_STREAM, 0), closed_6 = socket(AF_INET6, SOCK_STREAM, 0), large = 4 << 20;
    for (size_t i = 0; i < sizeof many; i++) many[i] = (char)(i * 7 + i / 251);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    connect_both((struct sockaddr *)&address, sizeof address, listener, &client, &server);
    REQUIRE(setsockopt(closed, SOL_SOCKET, SO_RCVBUF, &large, sizeof large) == 0);
    connect_both((struct sockaddr *)&again, sizeof again, closed, &other_client, &other_server);
    connect_both((struct sockaddr *)&address_6, sizeof address_6, closed_6, &client_6, &server_6);
    REQUIRE(close(closed) == 0 && close(closed_6) == 0);
    REQUIRE(getsockname(client, (struct sockaddr *)&own, &length) == 0);
    REQUIRE(getpeername(client, (struct sockaddr *)&theirs, &length) == 0);
    REQUIRE(setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    REQUIRE(write(client, "to server", 9) == 9 && write(server, "to client", 9) == 9);
    size_t sent = 0;
    while (sent < sizeof many / 2) {
        ssize_t bytes = send(other_client, many + sent, 4096, MSG_DONTWAIT);
        REQUIRE(bytes == 4096);
        sent += (size_t)bytes;
        REQUIRE(COMES_TRUE(readable(other_server) == (int)sent), "%d of %zu arrived", readable(other_server), sent);
    }
    REQUIRE(write(client_6, "last", 4) == 4 && shutdown(client_6, SHUT_WR) == 0);
    REQUIRE(COMES_TRUE(readable(server) == 9));
    REQUIRE(setsockopt(server, SOL_SOCKET, SO_PEEK_OFF, &peek_offset, sizeof peek_offset) == 0);
}

static void require_read(int fd, const char *expected, size_t bytes) {
    static char text[MANY_BYTES];
    size_t got = 0;
    while (got < bytes) {
        REQUIRE(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, PATIENCE_MS) == 1, "%zu of %zu", got, bytes);
        ssize_t more = read(fd, text + got, bytes - got);
        REQUIRE(more > 0, "%zu of %zu", got, bytes);
        got += (size_t)more;
    }
    REQUIRE(memcmp(text, expected, bytes) == 0);
}

static void check_ends(void) {
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    int is_on = 0;
    REQUIRE(getsockname(client, (struct sockaddr *)&address, &length) == 0 && address.sin_port == own.sin_port);
    REQUIRE(getpeername(server, (struct sockaddr *)&address, &length) == 0 && address.sin_port == own.sin_port);
    REQUIRE(getsockname(server, (struct sockaddr *)&address, &length) == 0 && address.sin_port == theirs.sin_port);
    length = sizeof is_on;
    REQUIRE(getsockopt(client, IPPROTO_TCP, TCP_NODELAY, &is_on, &length) == 0 && is_on);
    REQUIRE(getsockopt(server, IPPROTO_TCP, TCP_NODELAY, &is_on, &length) == 0 && !is_on);
    REQUIRE(fcntl(server, F_GETFL) & O_NONBLOCK && !(fcntl(client, F_GETFL) & O_NONBLOCK));
}

static void check_peek_offset(void) {
    int offset = -1;
    socklen_t length = sizeof offset;
    char text[6];
    REQUIRE(getsockopt(server, SOL_SOCKET, SO_PEEK_OFF, &offset, &length) == 0 && offset == peek_offset, "%d", offset);
    REQUIRE(recv(server, text, sizeof text, MSG_PEEK) == sizeof text && memcmp(text, "server", sizeof text) == 0);
}

static void check(void) {
    char byte;
    check_ends();
    check_peek_offset();
    require_read(server, "to server", 9);
    require_read(client, "to client", 9);
    /* Sends more than fits at once, in both directions. */
    for (int turn = 0; turn < 20; turn++) {
        ssize_t sent = send(turn % 2 ? server : client, many, sizeof many, MSG_DONTWAIT);
        REQUIRE(sent > 0);
        require_read(turn % 2 ? client : server, many, (size_t)sent);
    }
    REQUIRE(readable(other_server) == sizeof many / 2, "%d bytes", readable(other_server));
    require_read(other_server, many, sizeof many / 2);
    REQUIRE(write(other_client, "more", 4) == 4);
    require_read(other_server, "more", 4);
    require_read(server_6, "last", 4);
    REQUIRE(poll(&(struct pollfd){.fd = server_6, .events = POLLIN}, 1, PATIENCE_MS) == 1 && read(server_6, &byte, 1) == 0);
    REQUIRE(write(server_6, "answer", 6) == 6 && send(client_6, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
    require_read(client_6, "answer", 6);
    REQUIRE(close(client) == 0 && poll(&(struct pollfd){.fd = server, .events = POLLIN}, 1, PATIENCE_MS) == 1);
    REQUIRE(read(server, &byte, 1) == 0);
    /* The listening socket still has its port. */
    client = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(connect(client, (struct sockaddr *)&theirs, sizeof theirs) == 0 && accept(listener, NULL, NULL) >= 0);
}
