/* A TCP connection to another process: the parent's goes on, the child's was reset. */
#include "resource.h"

#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>

static int connection;

static void set_up(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    char byte;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0);
    REQUIRE(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int server = accept(listener, NULL, NULL);
        while (read(server, &byte, 1) == 1 && write(server, &byte, 1) == 1) continue;
        _exit(0);
    }
    close(listener);
    connection = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(connect(connection, (struct sockaddr *)&address, sizeof address) == 0);
}

static void check(void) {
    char byte = 'e';
    if (is_child) {
        struct pollfd state = {.fd = connection, .events = POLLIN};
        REQUIRE(poll(&state, 1, PATIENCE_MS) == 1 && state.revents & POLLHUP, "events %x", state.revents);
        REQUIRE(read(connection, &byte, 1) == -1 && errno == ECONNRESET, "no reset");
        REQUIRE(read(connection, &byte, 1) == 0 && send(connection, &byte, 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
    } else {
        REQUIRE(write(connection, &byte, 1) == 1 && read(connection, &byte, 1) == 1 && byte == 'e');
    }
}
