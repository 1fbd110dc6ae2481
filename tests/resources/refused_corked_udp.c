/* A datagram of which one half was sent (MSG_MORE): the kernel shows only its size. Not carried. */
#include "resource.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

static int sender, receiver;

static void set_up(void) {
    struct sockaddr_in6 name = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    socklen_t length = sizeof name;
    receiver = socket(AF_INET6, SOCK_DGRAM, 0), sender = socket(AF_INET6, SOCK_DGRAM, 0);
    REQUIRE(bind(receiver, (struct sockaddr *)&name, length) == 0);
    REQUIRE(getsockname(receiver, (struct sockaddr *)&name, &length) == 0);
    REQUIRE(connect(sender, (struct sockaddr *)&name, length) == 0 && send(sender, "first-", 6, MSG_MORE) == 6);
}

static void check(void) {
    char text[16];
    REQUIRE(send(sender, "second", 6, 0) == 6);
    REQUIRE(recv(receiver, text, sizeof text, 0) == 12 && memcmp(text, "first-second", 12) == 0);
}
