/* TCP connections over loopback that both ends have shut down, with and without unread data. They end without a reset.
 * One was accepted from a socket that still listens. */
#include "resource.h"

#include <netinet/in.h>
#include <sys/socket.h>

static int listener, client, accepted;
static struct sockaddr_in address = {.sin_family = AF_INET}, of_client;

static void set_up(void) {
    socklen_t length = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 4) == 0);
    REQUIRE(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    REQUIRE(connect(client, (struct sockaddr *)&address, sizeof address) == 0 && (accepted = accept(listener, NULL, NULL)) >= 0);
    REQUIRE(send(client, "unread", 6, 0) == 6 && shutdown(client, SHUT_WR) == 0 && shutdown(accepted, SHUT_WR) == 0);
    REQUIRE(getsockname(client, (struct sockaddr *)&of_client, &length) == 0);
}

static void require_end(int fd, const char *text) {
    char got[16] = {0};
    struct pollfd polled = {.fd = fd, .events = POLLIN | POLLRDHUP};
    REQUIRE(poll(&polled, 1, PATIENCE_MS) == 1 && polled.revents == (POLLIN | POLLRDHUP | POLLHUP), "fd %d is ready for %x", fd, polled.revents);
    REQUIRE(recv(fd, got, sizeof got, 0) == (ssize_t)strlen(text) && strcmp(got, text) == 0, "fd %d: %s", fd, got);
    REQUIRE(recv(fd, got, sizeof got, 0) == 0 && recv(fd, got, sizeof got, 0) == 0, "fd %d does not end", fd);
    REQUIRE(send(fd, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
}

static void check(void) {
    struct sockaddr_in now;
    socklen_t length = sizeof now;
    REQUIRE(getsockname(accepted, (struct sockaddr *)&now, &length) == 0 && now.sin_port == address.sin_port, "port %d", ntohs(now.sin_port));
    REQUIRE(getsockname(client, (struct sockaddr *)&now, &length) == 0 && now.sin_port == of_client.sin_port, "port %d", ntohs(now.sin_port));
    REQUIRE(getpeername(client, (struct sockaddr *)&now, &length) == -1 && errno == ENOTCONN);
    require_end(client, ""), require_end(accepted, "unread");
    REQUIRE(close(client) == 0 && close(accepted) == 0);
    /* The listening socket still works. */
    client = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(connect(client, (struct sockaddr *)&address, sizeof address) == 0 && (accepted = accept(listener, NULL, NULL)) >= 0);
    REQUIRE(send(client, "again", 5, 0) == 5 && recv(accepted, &now, sizeof now, 0) == 5);
}
