/* Unix connections to other processes, and others whose other end is closed. In the parent they continue; in the child the
 * peers are closed. Both ends keep their names. */
#include "resource.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { KEPT_LISTENER, CLOSED_LISTENER, ABSTRACT_CLIENT, CLIENT_OF_LISTENER, ENDS };

static int connection, ended[ENDS];
static struct sockaddr_un names[ENDS][2];
static socklen_t lengths[ENDS][2];

/* Reads the names of both ends. */
static void read_names(int fd, struct sockaddr_un both[2], socklen_t bytes[2]) {
    memset(both, 0, 2 * sizeof both[0]);
    bytes[0] = bytes[1] = sizeof both[0];
    REQUIRE(getsockname(fd, (struct sockaddr *)&both[0], &bytes[0]) == 0 && getpeername(fd, (struct sockaddr *)&both[1], &bytes[1]) == 0);
}

/* Returns the address of a path, or an abstract address. */
static struct sockaddr_un address_of(const char *what, int end, int is_abstract) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char name[32];
    snprintf(name, sizeof name, "%s-%d", what, end);
    snprintf(address.sun_path + is_abstract, sizeof address.sun_path - 1, "%s", path_of(name));
    return address;
}

/* Connects a named client and closes one end. The other end has a message. */
static void set_up_ended(int end) {
    int is_abstract = end == ABSTRACT_CLIENT, keeps_client = end >= ABSTRACT_CLIENT;
    struct sockaddr_un server = address_of("server", end, is_abstract), own = address_of("client", end, is_abstract);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&server, sizeof server) == 0 && listen(listener, 1) == 0);
    REQUIRE(bind(client, (struct sockaddr *)&own, sizeof own) == 0);
    REQUIRE(connect(client, (struct sockaddr *)&server, sizeof server) == 0);
    int accepted = accept(listener, NULL, NULL), closed = keeps_client ? accepted : client;
    ended[end] = keeps_client ? client : accepted;
    REQUIRE(accepted >= 0 && send(closed, "last", 4, 0) == 4);
    read_names(ended[end], names[end], lengths[end]);
    REQUIRE(close(closed) == 0);
    if (end == CLOSED_LISTENER || end == ABSTRACT_CLIENT) REQUIRE(close(listener) == 0);
}

static void check_ended(int end) {
    struct sockaddr_un now[2], sender = {0};
    socklen_t bytes[2], length = sizeof sender;
    char text[8];
    read_names(ended[end], now, bytes);
    for (int i = 0; i < 2; i++) REQUIRE(bytes[i] == lengths[end][i] && memcmp(&now[i], &names[end][i], bytes[i]) == 0, "end %d", end);
    REQUIRE(recvfrom(ended[end], text, sizeof text, 0, (struct sockaddr *)&sender, &length) == 4, "end %d", end);
    REQUIRE(length == bytes[1] && memcmp(&sender, &now[1], length) == 0 && read(ended[end], text, 1) == 0, "end %d", end);
}

static void set_up(void) {
    int ends[2];
    char byte;
    for (int end = 0; end < ENDS; end++) set_up_ended(end);
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
    for (int end = 0; end < ENDS; end++) check_ended(end);
    if (is_child) {
        REQUIRE(read(connection, &byte, 1) == 0, "the child's other end is not closed");
        REQUIRE(write(connection, &byte, 1) == -1 && errno == EPIPE);
    } else {
        REQUIRE(write(connection, &byte, 1) == 1 && read(connection, &byte, 1) == 1 && byte == 'e');
    }
}
