/* Sockets with an error that the process has not read: a TCP connection that was refused, and connected UDP sockets whose
 * datagrams were refused, over IPv4 and IPv6. */
#include "resource.h"

#include <netinet/in.h>
#include <sys/socket.h>

static int stream, datagrams[2], receivers[2];

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

static void set_up(void) {
    struct sockaddr_storage name;
    socklen_t length;
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

/* Reads the error, which removes it. */
static int error_of(int fd) {
    int error = -1;
    socklen_t length = sizeof error;
    REQUIRE(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0);
    return error;
}

static void check(void) {
    char byte;
    REQUIRE(error_of(stream) == ECONNREFUSED && error_of(stream) == 0);
    REQUIRE(!(fcntl(stream, F_GETFL) & O_NONBLOCK));
    for (int i = 0; i < 2; i++) {
        REQUIRE(send(datagrams[i], "y", 1, 0) == -1 && errno == ECONNREFUSED, "socket %d", i);
        REQUIRE(error_of(datagrams[i]) == 0 && send(datagrams[i], "z", 1, 0) == 1);
        REQUIRE(recv(receivers[i], &byte, 1, 0) == 1 && byte == 'z', "%c", byte);
    }
}
