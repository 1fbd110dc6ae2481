/* A TCP connection within the process with more data than the receiver has room for. Unsent data cannot be read: not
 * carried. */
#include "resource.h"

#include <netinet/in.h>
#include <sys/socket.h>

static int client, server;
static size_t sent;

static void set_up(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    client = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0);
    REQUIRE(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    REQUIRE(connect(client, (struct sockaddr *)&address, sizeof address) == 0);
    server = accept(listener, NULL, NULL);
    REQUIRE(server >= 0 && close(listener) == 0);
    char piece[1 << 16] = {0};
    for (ssize_t bytes; (bytes = send(client, piece, sizeof piece, MSG_DONTWAIT)) > 0;) sent += (size_t)bytes;
}

static void check(void) {
    char piece[1 << 16];
    shutdown(client, SHUT_WR);
    for (ssize_t bytes; (bytes = read(server, piece, sizeof piece)) > 0;) sent -= (size_t)bytes;
    REQUIRE(sent == 0);
}
