/* TCP connections over loopback that wait to be accepted by a socket of the process: their order and ports. One of
 * them has shut down its sending side. */
#include "resource.h"

#include <netinet/in.h>
#include <sys/socket.h>

static int listener, clients[2];
static struct sockaddr_in own[2], theirs;

static void set_up(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    listener = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 4) == 0);
    length = sizeof theirs;
    REQUIRE(getsockname(listener, (struct sockaddr *)&theirs, &length) == 0);
    for (int i = 0; i < 2; i++) {
        clients[i] = socket(AF_INET, SOCK_STREAM, 0), length = sizeof own[i];
        REQUIRE(connect(clients[i], (struct sockaddr *)&theirs, sizeof theirs) == 0);
        REQUIRE(getsockname(clients[i], (struct sockaddr *)&own[i], &length) == 0);
    }
    REQUIRE(shutdown(clients[1], SHUT_WR) == 0);
}

static void check(void) {
    struct sockaddr_in address;
    socklen_t length;
    char byte;
    for (int i = 0; i < 2; i++) {
        length = sizeof address;
        int server = accept(listener, (struct sockaddr *)&address, &length);
        REQUIRE(server >= 0 && address.sin_port == own[i].sin_port, "port %d, not %d", ntohs(address.sin_port), ntohs(own[i].sin_port));
        REQUIRE(write(server, "s", 1) == 1 && read(clients[i], &byte, 1) == 1 && byte == 's');
        if (i == 0) REQUIRE(write(clients[i], "c", 1) == 1 && read(server, &byte, 1) == 1 && byte == 'c');
        else REQUIRE(read(server, &byte, 1) == 0);
    }
    REQUIRE(fcntl(listener, F_SETFL, O_NONBLOCK) == 0 && accept(listener, NULL, NULL) == -1 && errno == EAGAIN);
}
