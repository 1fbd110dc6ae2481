/* A Unix stream connection within the process, made by connect(2) and accept(2), with data in flight. The accepted end
 * has the address of the listener. */
#include "resource.h"

#include <sys/socket.h>
#include <sys/un.h>

static int listener, client, server;

static void set_up(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path_of("socket"), sizeof address.sun_path - 1);
    listener = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 3) == 0);
    REQUIRE(connect(client, (struct sockaddr *)&address, sizeof address) == 0);
    server = accept(listener, NULL, NULL);
    REQUIRE(server >= 0 && write(client, "to server", 9) == 9 && write(server, "to client", 9) == 9);
}

static void check(void) {
    char text[32] = {0};
    struct sockaddr_un address = {0};
    socklen_t length = sizeof address;
    REQUIRE(getpeername(client, (struct sockaddr *)&address, &length) == 0 && strcmp(address.sun_path, path_of("socket")) == 0, "%s", address.sun_path);
    REQUIRE(read(server, text, sizeof text) == 9 && strcmp(text, "to server") == 0);
    REQUIRE(read(client, text, sizeof text) == 9 && strcmp(text, "to client") == 0);
    close(client);
    REQUIRE(read(server, text, 1) == 0);
}
