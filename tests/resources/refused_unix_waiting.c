/* Unaccepted connections with data, which cannot be read before accept(2), and of a client that is closed: not carried. */
#include "resource.h"

#include <sys/socket.h>
#include <sys/un.h>

static int listener, client, left;

static void set_up(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path_of("listener"), sizeof address.sun_path - 1);
    listener = socket(AF_UNIX, SOCK_SEQPACKET, 0), client = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 4) == 0);
    REQUIRE(connect(client, (struct sockaddr *)&address, sizeof address) == 0 && write(client, "early", 5) == 5);
    strncpy(address.sun_path, path_of("left"), sizeof address.sun_path - 1);
    left = socket(AF_UNIX, SOCK_STREAM, 0);
    int closed = socket(AF_UNIX, SOCK_STREAM, 0);
    REQUIRE(left == 5 && bind(left, (struct sockaddr *)&address, sizeof address) == 0 && listen(left, 4) == 0);
    REQUIRE(connect(closed, (struct sockaddr *)&address, sizeof address) == 0 && close(closed) == 0);
}

static void check(void) {
    char text[16] = {0};
    int server = accept(listener, NULL, NULL);
    REQUIRE(server >= 0 && read(server, text, sizeof text) == 5 && strcmp(text, "early") == 0);
    server = accept(left, NULL, NULL);
    REQUIRE(server >= 0 && read(server, text, sizeof text) == 0);
}
