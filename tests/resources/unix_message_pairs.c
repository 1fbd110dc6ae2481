/* Pairs of Unix sockets that keep message boundaries, with messages in flight, one of them empty. */
#include "resource.h"

#include <sys/socket.h>

static int datagram[2], packet[2];

static void set_up(void) {
    REQUIRE(socketpair(AF_UNIX, SOCK_DGRAM, 0, datagram) == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, packet) == 0);
    REQUIRE(write(datagram[0], "one", 3) == 3 && write(datagram[0], "", 0) == 0 && write(datagram[0], "three", 5) == 5);
    REQUIRE(write(packet[1], "first", 5) == 5 && write(packet[1], "2", 1) == 1);
}

static void check(void) {
    char text[64];
    REQUIRE(recv(datagram[1], text, sizeof text, MSG_DONTWAIT) == 3 && memcmp(text, "one", 3) == 0);
    REQUIRE(recv(datagram[1], text, sizeof text, MSG_DONTWAIT) == 0, "the empty message is lost");
    REQUIRE(recv(datagram[1], text, sizeof text, MSG_DONTWAIT) == 5 && memcmp(text, "three", 5) == 0);
    REQUIRE(recv(datagram[1], text, sizeof text, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    REQUIRE(read(packet[0], text, sizeof text) == 5 && read(packet[0], text, sizeof text) == 1 && text[0] == '2');
    REQUIRE(write(packet[0], "back", 4) == 4 && read(packet[1], text, sizeof text) == 4);
    REQUIRE(write(datagram[1], "back", 4) == 4 && read(datagram[0], text, sizeof text) == 4);
}
