/* TCP sockets whose connect(2) has no answer yet: one that does not block, and one in which a thread waits. In the parent they
 * go on; in a child they were refused. */
#include "resource.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

static int polled_stream, awaited_stream;
static struct sockaddr_in name = {.sin_family = AF_INET};
static _Atomic int awaited_error; /* 0 while the thread waits */

static void *await_connect(void *nothing) {
    int result = connect(awaited_stream, (struct sockaddr *)&name, sizeof name);
    awaited_error = result == 0 ? -1 : errno;
    return nothing;
}

static int is_connecting(int stream) {
    char state = 0;
    socklen_t length = sizeof state;
    return getsockopt(stream, IPPROTO_TCP, TCP_INFO, &state, &length) == 0 && state == TCP_SYN_SENT;
}

static void set_up(void) {
    socklen_t length = sizeof name;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    /* A listening socket whose queue is full does not answer. */
    int listener = socket(AF_INET, SOCK_STREAM, 0), first = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&name, length) == 0 && listen(listener, 0) == 0);
    REQUIRE(getsockname(listener, (struct sockaddr *)&name, &length) == 0);
    REQUIRE(connect(first, (struct sockaddr *)&name, length) == 0);
    polled_stream = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    awaited_stream = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(connect(polled_stream, (struct sockaddr *)&name, length) == -1 && errno == EINPROGRESS);
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, await_connect, NULL) == 0);
    REQUIRE(COMES_TRUE(is_connecting(awaited_stream)) && is_connecting(polled_stream));
}

static void check(void) {
    int error = -1;
    if (!is_child) {
        REQUIRE(is_connecting(polled_stream) && is_connecting(awaited_stream) && awaited_error == 0);
        return;
    }
    REQUIRE(getsockopt(polled_stream, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){sizeof error}) == 0);
    REQUIRE(error == ECONNREFUSED, "error %d", error);
    REQUIRE(fcntl(polled_stream, F_GETFL) & O_NONBLOCK);
    REQUIRE(COMES_TRUE(awaited_error != 0) && awaited_error == ECONNREFUSED, "error %d", awaited_error);
}
