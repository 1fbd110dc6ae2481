/* A TCP connection of the process with its own listening socket, not accepted yet: not carried. */
#include "resource.h"

#include <netinet/in.h>
#include <sys/socket.h>

static int listener, client;

static void set_up(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    listener = socket(AF_INET, SOCK_STREAM, 0);
    client = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0);
    REQUIRE(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    REQUIRE(connect(client, (struct sockaddr *)&address, sizeof address) == 0 && write(client, "early", 5) == 5);
}

static void check(void) {
    char text[16] = {0};
    int server = accept(listener, NULL, NULL);
    REQUIRE(server >= 0 && read(server, text, sizeof text) == 5 && strcmp(text, "early") == 0);
}
