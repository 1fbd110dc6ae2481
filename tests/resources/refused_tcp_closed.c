/* A TCP connection that waits to be accepted, with data of a client that the process has closed. */
#include "resource.h"

#include <netinet/in.h>
#include <sys/socket.h>

static int listener;

static void set_up(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    listener = socket(AF_INET, SOCK_STREAM, 0);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(listener == 3 && bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 4) == 0);
    REQUIRE(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    REQUIRE(connect(client, (struct sockaddr *)&address, length) == 0 && send(client, "data", 4, 0) == 4 && close(client) == 0);
}

static void check(void) {
    char got[8];
    int accepted = accept(listener, NULL, NULL);
    REQUIRE(accepted >= 0 && recv(accepted, got, sizeof got, 0) == 4 && recv(accepted, got, sizeof got, 0) == 0);
}
