/* A TCP connection over loopback, both ends of which are the process's own. */
#include "resource.h"

#include <netinet/in.h>
#include <sys/socket.h>

static int client, server;

static void set_up(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    client = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0);
    REQUIRE(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    REQUIRE(connect(client, (struct sockaddr *)&address, sizeof address) == 0);
    server = accept(listener, NULL, NULL);
    REQUIRE(server >= 0 && close(listener) == 0 && write(client, "queued", 6) == 6);
}

static void check(void) {
    char text[16] = {0};
    REQUIRE(poll(&(struct pollfd){.fd = server, .events = POLLIN}, 1, PATIENCE_MS) == 1);
    REQUIRE(read(server, text, sizeof text) == 6 && strcmp(text, "queued") == 0, "%s", text);
    REQUIRE(write(server, "back", 4) == 4 && read(client, text, sizeof text) == 4);
}
