/* The owner and the signal for readiness of a descriptor (F_SETOWN, F_SETSIG, O_ASYNC), and the owner of a socket that is not
 * signal-driven, which gets SIGURG. */
#include "resource.h"

#include <netinet/in.h>
#include <sys/socket.h>

static int ends[2], client, server;

static void set_up_socket(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0);
    REQUIRE(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    client = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(connect(client, (struct sockaddr *)&address, length) == 0 && (server = accept(listener, NULL, NULL)) >= 0);
    REQUIRE(close(listener) == 0 && fcntl(server, F_SETOWN, getpid()) == 0 && fcntl(server, F_SETSIG, SIGRTMIN + 4) == 0);
    block(SIGURG), block(SIGRTMIN + 4);
}

static void set_up(void) {
    set_up_socket();
    REQUIRE(pipe2(ends, O_NONBLOCK) == 0 && fcntl(ends[0], F_SETOWN, getpid()) == 0);
    block(SIGRTMIN + 3);
    REQUIRE(fcntl(ends[0], F_SETSIG, SIGRTMIN + 3) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK | O_ASYNC) == 0);
}

static void check_socket(void) {
    REQUIRE(fcntl(server, F_GETOWN) == getpid() && fcntl(server, F_GETSIG) == SIGRTMIN + 4 && !(fcntl(server, F_GETFL) & O_ASYNC));
    REQUIRE(send(client, "!", 1, MSG_OOB) == 1);
    take(SIGURG);
    REQUIRE(fcntl(server, F_SETFL, O_ASYNC) == 0 && write(client, "x", 1) == 1 && take(SIGRTMIN + 4).si_fd == server);
}

static void check(void) {
    check_socket();
    REQUIRE(fcntl(ends[0], F_GETFL) & O_ASYNC, "O_ASYNC is lost");
    REQUIRE(fcntl(ends[0], F_GETOWN) == getpid(), "owner %d", fcntl(ends[0], F_GETOWN));
    REQUIRE(fcntl(ends[0], F_GETSIG) == SIGRTMIN + 3, "signal %d", fcntl(ends[0], F_GETSIG));
    REQUIRE(write(ends[1], "x", 1) == 1 && take(SIGRTMIN + 3).si_fd == ends[0]);
}
