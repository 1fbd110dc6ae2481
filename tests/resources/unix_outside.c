/* A Unix connection to another process. In the parent it continues; in the child the peer is closed. */
#include "resource.h"

#include <sys/socket.h>

static int connection;

static void set_up(void) {
    int ends[2];
    char byte;
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    pid_t between = fork();
    REQUIRE(between >= 0);
    if (between == 0) {
        if (fork() != 0) _exit(0); /* the other process must not descend from a captured one */
        close(ends[0]);
        while (read(ends[1], &byte, 1) == 1 && write(ends[1], &byte, 1) == 1) continue;
        _exit(0);
    }
    REQUIRE(waitpid(between, NULL, 0) == between);
    connection = ends[0];
    close(ends[1]);
}

static void check(void) {
    char byte = 'e';
    signal(SIGPIPE, SIG_IGN);
    if (is_child) {
        REQUIRE(read(connection, &byte, 1) == 0, "the child's other end is not closed");
        REQUIRE(write(connection, &byte, 1) == -1 && errno == EPIPE);
    } else {
        REQUIRE(write(connection, &byte, 1) == 1 && read(connection, &byte, 1) == 1 && byte == 'e');
    }
}
