/* A bound Unix datagram socket with messages of a socket of the process, and of one that was closed: not carried. */
#include "resource.h"

#include <sys/socket.h>
#include <sys/un.h>

static int receiver;

static void set_up(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    receiver = socket(AF_UNIX, SOCK_DGRAM, 0);
    int open = socket(AF_UNIX, SOCK_DGRAM, 0), closed = socket(AF_UNIX, SOCK_DGRAM, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path_of("socket"));
    REQUIRE(receiver == 3 && bind(receiver, (struct sockaddr *)&address, sizeof address) == 0);
    REQUIRE(sendto(open, "one", 3, 0, (struct sockaddr *)&address, sizeof address) == 3);
    REQUIRE(sendto(closed, "two", 3, 0, (struct sockaddr *)&address, sizeof address) == 3 && close(closed) == 0);
}

static void check(void) {
    char got[8];
    REQUIRE(recv(receiver, got, sizeof got, MSG_DONTWAIT) == 3 && memcmp(got, "one", 3) == 0);
    REQUIRE(recv(receiver, got, sizeof got, MSG_DONTWAIT) == 3 && memcmp(got, "two", 3) == 0);
}
