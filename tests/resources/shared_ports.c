/* Listening sockets on a common port (SO_REUSEPORT): a pair that still has the option, a pair of which one socket has
 * cleared it, and a pair of which both have cleared it. Each pair accepts connections. */
#include "resource.h"

#include <netinet/in.h>
#include <sys/socket.h>

#define PAIRS 3

static int listeners[PAIRS][2];
static struct sockaddr_in addresses[PAIRS];

static int listening(struct sockaddr_in *address) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
    socklen_t length = sizeof *address;
    REQUIRE(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0);
    REQUIRE(bind(fd, (struct sockaddr *)address, sizeof *address) == 0 && listen(fd, 64) == 0);
    REQUIRE(getsockname(fd, (struct sockaddr *)address, &length) == 0);
    return fd;
}

/* The index of a pair is the number of its sockets that clear the option. */
static void set_up(void) {
    int off = 0;
    for (int pair = 0; pair < PAIRS; pair++) {
        addresses[pair] = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
        for (int i = 0; i < 2; i++) listeners[pair][i] = listening(&addresses[pair]);
        for (int i = 0; i < pair; i++) REQUIRE(setsockopt(listeners[pair][i], SOL_SOCKET, SO_REUSEPORT, &off, sizeof off) == 0);
    }
}

static void check(void) {
    for (int pair = 0; pair < PAIRS; pair++) {
        int taken[2] = {0, 0}, value;
        socklen_t length = sizeof value;
        for (int i = 0; i < 2; i++)
            REQUIRE(getsockopt(listeners[pair][i], SOL_SOCKET, SO_REUSEPORT, &value, &length) == 0 && value == (i >= pair), "pair %d: %d", pair, value);
        /* The kernel spreads connections among the sockets that have the option. */
        for (int i = 0; i < 64; i++) {
            int client = socket(AF_INET, SOCK_STREAM, 0);
            REQUIRE(connect(client, (struct sockaddr *)&addresses[pair], sizeof addresses[pair]) == 0);
        }
        for (int i = 0; i < 2; i++)
            while (accept(listeners[pair][i], NULL, NULL) >= 0) taken[i]++;
        REQUIRE(taken[0] + taken[1] == 64 && (pair > 0 || (taken[0] > 0 && taken[1] > 0)), "pair %d: %d and %d connections", pair, taken[0], taken[1]);
    }
}
