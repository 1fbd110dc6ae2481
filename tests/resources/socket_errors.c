/* Sockets with an error that the process has not read: a TCP connection that was refused, and connected UDP sockets whose
 * datagrams were refused, over IPv4 and IPv6. TCP sockets that the process has disconnected (connect(2) with AF_UNSPEC) have
 * the error of the reset connection, and the port that it had. */
#include "resource.h"

#include <netinet/in.h>
#include <sys/socket.h>

enum { UNREAD, READ, BOUND, ADDRESS, IPV6, ENDS };

static int stream, datagrams[2], receivers[2], disconnected[ENDS];
static struct sockaddr_storage names[ENDS];

/* Binds a new socket to a free port of the loopback interface. */
static int bound(int family, int type, struct sockaddr_storage *name, socklen_t *length) {
    int made = socket(family, type, 0);
    memset(name, 0, sizeof *name);
    name->ss_family = (sa_family_t)family;
    *length = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    if (family == AF_INET) ((struct sockaddr_in *)name)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (family == AF_INET6) ((struct sockaddr_in6 *)name)->sin6_addr = in6addr_loopback;
    REQUIRE(made >= 0 && bind(made, (struct sockaddr *)name, *length) == 0);
    REQUIRE(getsockname(made, (struct sockaddr *)name, length) == 0);
    return made;
}

static int has_error(int fd) {
    struct pollfd polled = {.fd = fd};
    return poll(&polled, 1, 0) == 1 && polled.revents & POLLERR;
}

/* Reads the error, which removes it. */
static int error_of(int fd) {
    int error = -1;
    socklen_t length = sizeof error;
    REQUIRE(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0);
    return error;
}

static int connect_to_nothing(int fd) {
    struct sockaddr nothing = {.sa_family = AF_UNSPEC};
    return connect(fd, &nothing, sizeof nothing);
}

/* The kernel keeps the port of a socket only if bind(2) has named it. */
static int bound_as(int end, int family) {
    struct sockaddr_storage name;
    socklen_t length;
    int fd = end == BOUND || end == ADDRESS ? bound(family, SOCK_STREAM, &name, &length) : socket(family, SOCK_STREAM, 0);
    if (end == BOUND) {
        REQUIRE(close(fd) == 0 && (fd = socket(family, SOCK_STREAM, 0)) >= 0);
        REQUIRE(bind(fd, (struct sockaddr *)&name, length) == 0);
    }
    return fd;
}

static void disconnect(int end) {
    struct sockaddr_storage name;
    socklen_t length;
    int family = end == IPV6 ? AF_INET6 : AF_INET, listener = bound(family, SOCK_STREAM, &name, &length), fd;
    REQUIRE(listen(listener, 1) == 0);
    fd = disconnected[end] = bound_as(end, family);
    REQUIRE(connect(fd, (struct sockaddr *)&name, length) == 0 && connect_to_nothing(fd) == 0 && close(listener) == 0);
    REQUIRE(has_error(fd) && (end != READ || error_of(fd) == ECONNRESET));
    length = sizeof names[end];
    REQUIRE(getsockname(fd, (struct sockaddr *)&names[end], &length) == 0);
}

static void set_up(void) {
    struct sockaddr_storage name;
    socklen_t length;
    for (int end = 0; end < ENDS; end++) disconnect(end);
    int closed = bound(AF_INET, SOCK_STREAM, &name, &length);
    stream = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    REQUIRE(connect(stream, (struct sockaddr *)&name, length) == -1 && errno == EINPROGRESS);
    REQUIRE(COMES_TRUE(has_error(stream)) && close(closed) == 0 && fcntl(stream, F_SETFL, 0) == 0);
    for (int i = 0; i < 2; i++) {
        int family = i ? AF_INET6 : AF_INET;
        closed = bound(family, SOCK_DGRAM, &name, &length);
        datagrams[i] = socket(family, SOCK_DGRAM, 0);
        REQUIRE(connect(datagrams[i], (struct sockaddr *)&name, length) == 0 && close(closed) == 0);
        REQUIRE(send(datagrams[i], "x", 1, 0) == 1 && COMES_TRUE(has_error(datagrams[i])));
        receivers[i] = socket(family, SOCK_DGRAM, 0);
        REQUIRE(bind(receivers[i], (struct sockaddr *)&name, length) == 0);
    }
}

/* The socket has its name, its error, and can be connected again. Only a bound socket cannot be bound. */
static void check_disconnected(int end) {
    struct sockaddr_storage name, other = {.ss_family = names[end].ss_family};
    socklen_t length = sizeof name;
    int fd = disconnected[end], listener;
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    REQUIRE(getsockname(fd, (struct sockaddr *)&name, &length) == 0 && memcmp(&name, &names[end], length) == 0, "end %d", end);
    REQUIRE(poll(&polled, 1, 0) == 1 && polled.revents == (POLLHUP | (end == READ ? 0 : POLLERR)), "end %d: %x", end, polled.revents);
    REQUIRE(error_of(fd) == (end == READ ? 0 : ECONNRESET) && error_of(fd) == 0, "end %d", end);
    listener = bound(names[end].ss_family, SOCK_STREAM, &name, &length);
    REQUIRE(listen(listener, 1) == 0 && (bind(fd, (struct sockaddr *)&other, length) == 0) == (end != BOUND), "end %d", end);
    REQUIRE(connect(fd, (struct sockaddr *)&name, length) == 0 && close(listener) == 0, "end %d", end);
}

static void check(void) {
    char byte;
    for (int end = 0; end < ENDS; end++) check_disconnected(end);
    REQUIRE(error_of(stream) == ECONNREFUSED && error_of(stream) == 0);
    REQUIRE(!(fcntl(stream, F_GETFL) & O_NONBLOCK));
    for (int i = 0; i < 2; i++) {
        REQUIRE(send(datagrams[i], "y", 1, 0) == -1 && errno == ECONNREFUSED, "socket %d", i);
        REQUIRE(error_of(datagrams[i]) == 0 && send(datagrams[i], "z", 1, 0) == 1);
        REQUIRE(recv(receivers[i], &byte, 1, 0) == 1 && byte == 'z', "%c", byte);
    }
}
