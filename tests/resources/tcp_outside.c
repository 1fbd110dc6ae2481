/* TCP connections to another process, one connected and one accepted. In the parent they continue; in the child they
 * are reset. */
#include "resource.h"

#include <netinet/in.h>
#include <sys/socket.h>

static int connections[2];

/* Echoes the data of both connections until both are closed. */
static void echo(int one, int two) {
    struct pollfd both[2] = {{.fd = one, .events = POLLIN}, {.fd = two, .events = POLLIN}};
    while (both[0].fd >= 0 || both[1].fd >= 0) {
        poll(both, 2, -1);
        for (int i = 0; i < 2; i++) {
            char byte;
            if (both[i].revents && (read(both[i].fd, &byte, 1) != 1 || write(both[i].fd, &byte, 1) != 1)) both[i].fd = -1;
        }
    }
}

static int listening(struct sockaddr_in *address) {
    socklen_t length = sizeof *address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    REQUIRE(bind(listener, (struct sockaddr *)address, length) == 0 && listen(listener, 1) == 0);
    REQUIRE(getsockname(listener, (struct sockaddr *)address, &length) == 0);
    return listener;
}

static void set_up(void) {
    struct sockaddr_in address, other;
    int listener = listening(&address), others = listening(&other);
    pid_t between = fork();
    REQUIRE(between >= 0);
    if (between == 0) {
        if (fork() != 0) _exit(0); /* the other process must not descend from a captured one */
        int accepted = accept(listener, NULL, NULL), made = socket(AF_INET, SOCK_STREAM, 0);
        REQUIRE(accepted >= 0 && connect(made, (struct sockaddr *)&other, sizeof other) == 0);
        close(listener), close(others);
        echo(accepted, made);
        _exit(0);
    }
    REQUIRE(waitpid(between, NULL, 0) == between);
    connections[0] = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(connect(connections[0], (struct sockaddr *)&address, sizeof address) == 0);
    connections[1] = accept(others, NULL, NULL);
    REQUIRE(connections[1] >= 0 && close(listener) == 0 && close(others) == 0);
}

static void check_connection(int connection) {
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

static void check(void) {
    check_connection(connections[0]);
    check_connection(connections[1]);
}
