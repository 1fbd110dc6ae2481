/* TCP connections that wait to be accepted, with data of clients that the process has closed. One has more data than the
 * other end has room for, so that its end of file has not arrived. */
#include "resource.h"

#include <netinet/in.h>
#include <sys/socket.h>

static int listeners[2];
static size_t sent;

static int connected_client(int *listener) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    *listener = socket(AF_INET, SOCK_STREAM, 0);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(*listener, (struct sockaddr *)&address, length) == 0 && listen(*listener, 4) == 0);
    REQUIRE(getsockname(*listener, (struct sockaddr *)&address, &length) == 0);
    REQUIRE(connect(client, (struct sockaddr *)&address, length) == 0);
    return client;
}

static void set_up(void) {
    char piece[1 << 16] = {0};
    int client = connected_client(&listeners[0]);
    for (ssize_t bytes; (bytes = send(client, piece, sizeof piece, MSG_DONTWAIT)) > 0;) sent += (size_t)bytes;
    REQUIRE(listeners[0] == 3 && close(client) == 0);
    client = connected_client(&listeners[1]);
    REQUIRE(listeners[1] == 4 && send(client, "data", 4, 0) == 4 && close(client) == 0);
}

static void check(void) {
    char got[1 << 16];
    int accepted = accept(listeners[0], NULL, NULL);
    for (ssize_t bytes; (bytes = recv(accepted, got, sizeof got, 0)) > 0;) sent -= (size_t)bytes;
    REQUIRE(sent == 0);
    accepted = accept(listeners[1], NULL, NULL);
    REQUIRE(accepted >= 0 && recv(accepted, got, sizeof got, 0) == 4 && recv(accepted, got, sizeof got, 0) == 0);
}
