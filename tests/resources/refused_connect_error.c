/* A TCP socket whose connect(2) has timed out, before the process has read that error. The kernel does not show which error it
 * is. Not carried. */
#include "resource.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

static int stream;

static void set_up(void) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    stream = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    /* A listening socket whose queue is full does not answer. */
    int listener = socket(AF_INET, SOCK_STREAM, 0), first = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&name, length) == 0 && listen(listener, 0) == 0);
    REQUIRE(getsockname(listener, (struct sockaddr *)&name, &length) == 0);
    REQUIRE(connect(first, (struct sockaddr *)&name, length) == 0);
    REQUIRE(setsockopt(stream, IPPROTO_TCP, TCP_SYNCNT, &(int){1}, sizeof(int)) == 0);
    REQUIRE(setsockopt(stream, IPPROTO_TCP, TCP_USER_TIMEOUT, &(int){100}, sizeof(int)) == 0);
    REQUIRE(connect(stream, (struct sockaddr *)&name, length) == -1 && errno == EINPROGRESS);
    struct pollfd polled = {.fd = stream};
    REQUIRE(poll(&polled, 1, PATIENCE_MS) == 1 && polled.revents & POLLERR);
    REQUIRE(close(first) == 0 && close(listener) == 0);
}

static void check(void) {
    int error = -1;
    REQUIRE(getsockopt(stream, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){sizeof error}) == 0 && error == ETIMEDOUT);
}
