/* Two connections that wait to be accepted by a listening socket of the process, in their order. One has a name and
 * has shut down its sending side. */
#include "resource.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

static int listener, clients[2];

static void set_up(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX}, name = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path_of("listener"), sizeof address.sun_path - 1);
    strncpy(name.sun_path, path_of("client"), sizeof name.sun_path - 1);
    listener = socket(AF_UNIX, SOCK_STREAM, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 4) == 0);
    for (int i = 0; i < 2; i++) clients[i] = socket(AF_UNIX, SOCK_STREAM, 0);
    REQUIRE(bind(clients[0], (struct sockaddr *)&name, sizeof name) == 0);
    /* The second client connects first. */
    REQUIRE(connect(clients[1], (struct sockaddr *)&address, sizeof address) == 0);
    REQUIRE(connect(clients[0], (struct sockaddr *)&address, sizeof address) == 0 && shutdown(clients[0], SHUT_WR) == 0);
}

static void check(void) {
    struct sockaddr_un address = {0};
    socklen_t length = sizeof address;
    char byte;
    int first = accept(listener, NULL, NULL), second = accept4(listener, (struct sockaddr *)&address, &length, SOCK_NONBLOCK);
    REQUIRE(first >= 0 && second >= 0);
    REQUIRE(write(clients[1], "1", 1) == 1 && read(first, &byte, 1) == 1 && byte == '1');
    REQUIRE(length > offsetof(struct sockaddr_un, sun_path) && strcmp(address.sun_path, path_of("client")) == 0);
    REQUIRE(read(second, &byte, 1) == 0 && write(second, "2", 1) == 1 && read(clients[0], &byte, 1) == 1 && byte == '2');
    REQUIRE(fcntl(listener, F_SETFL, O_NONBLOCK) == 0 && accept(listener, NULL, NULL) == -1 && errno == EAGAIN);
}
