/* Listening TCP sockets of both address families. They are bound in the child's network with their options. */
#include "resource.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

static int four, six;
static struct sockaddr_in address;
static struct sockaddr_in6 address6;

static void set_up(void) {
    int on = 1, idle = 33;
    socklen_t length = sizeof address, length6 = sizeof address6;
    address = (struct sockaddr_in){.sin_family = AF_INET};
    address6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    four = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), six = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(setsockopt(four, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 && setsockopt(four, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on) == 0);
    REQUIRE(setsockopt(four, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle) == 0);
    REQUIRE(bind(four, (struct sockaddr *)&address, sizeof address) == 0 && listen(four, 9) == 0);
    REQUIRE(bind(six, (struct sockaddr *)&address6, sizeof address6) == 0 && listen(six, 4) == 0);
    REQUIRE(getsockname(four, (struct sockaddr *)&address, &length) == 0 && getsockname(six, (struct sockaddr *)&address6, &length6) == 0);
}

static void serve(int listener, int family, const void *at, socklen_t length) {
    char byte = 0;
    int client = socket(family, SOCK_STREAM, 0);
    REQUIRE(connect(client, (const struct sockaddr *)at, length) == 0, "no socket listens");
    REQUIRE(poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, PATIENCE_MS) == 1);
    int server = accept(listener, NULL, NULL);
    REQUIRE(server >= 0 && write(client, "c", 1) == 1 && read(server, &byte, 1) == 1 && byte == 'c');
}

static void check(void) {
    struct sockaddr_in now;
    socklen_t length = sizeof now, option = sizeof(int);
    int value = 0;
    REQUIRE(getsockname(four, (struct sockaddr *)&now, &length) == 0 && now.sin_port == address.sin_port, "another port");
    REQUIRE(getsockopt(four, SOL_SOCKET, SO_KEEPALIVE, &value, &option) == 0 && value == 1);
    REQUIRE(getsockopt(four, IPPROTO_TCP, TCP_KEEPIDLE, &value, &option) == 0 && value == 33, "%d", value);
    REQUIRE(fcntl(four, F_GETFL) & O_NONBLOCK && fcntl(six, F_GETFD) == FD_CLOEXEC);
    now.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    serve(four, AF_INET, &now, sizeof now);
    serve(six, AF_INET6, &address6, sizeof address6);
}
