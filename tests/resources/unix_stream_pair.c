/* A pair of Unix stream sockets within the process: data in flight in both directions, one direction shut down, modes,
 * and owners; and an end with unread data whose peer is closed. */
#include "resource.h"

#include <sys/socket.h>

#define BYTES 50000

static int pair[2], last, usual;
static char sent[BYTES];

static void set_up(void) {
    int half[2], size = 120000;
    for (int i = 0; i < BYTES; i++) sent[i] = (char)(i * 7 + i / 256);
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, half) == 0);
    REQUIRE(getsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &usual, &(socklen_t){sizeof usual}) == 0);
    REQUIRE(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size) == 0);
    REQUIRE(write(pair[0], sent, BYTES) == BYTES && write(pair[1], "back", 4) == 4);
    REQUIRE(setsockopt(pair[0], SOL_SOCKET, SO_PEEK_OFF, &(int){2}, sizeof(int)) == 0);
    REQUIRE(shutdown(pair[1], SHUT_WR) == 0 && fcntl(pair[0], F_SETFL, O_NONBLOCK) == 0);
    REQUIRE(write(half[1], "words", 5) == 5 && close(half[1]) == 0);
    last = half[0];
}

static void check(void) {
    static char found[BYTES];
    struct ucred peer;
    socklen_t length = sizeof peer;
    int size = 0;
    REQUIRE(getsockopt(pair[0], SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.pid == getpid(), "pid %d", peer.pid);
    length = sizeof size;
    REQUIRE(getsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &size, &length) == 0 && size == 240000, "buffer %d", size);
    length = sizeof size;
    REQUIRE(getsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &size, &length) == 0 && size == usual, "buffer %d", size);
    REQUIRE(recv(pair[1], found, BYTES, MSG_WAITALL) == BYTES && memcmp(sent, found, BYTES) == 0);
    REQUIRE(recv(pair[0], found, BYTES, MSG_PEEK) == 2 && memcmp(found, "ck", 2) == 0, "SO_PEEK_OFF has changed");
    REQUIRE(read(pair[0], found, BYTES) == 4 && memcmp(found, "back", 4) == 0);
    REQUIRE(read(pair[0], found, 1) == 0, "the other direction is not shut down");
    signal(SIGPIPE, SIG_IGN);
    REQUIRE(write(pair[1], "x", 1) == -1 && errno == EPIPE);
    REQUIRE(write(pair[0], "more", 4) == 4 && read(pair[1], found, BYTES) == 4);
    REQUIRE(fcntl(pair[0], F_GETFL) & O_NONBLOCK && !(fcntl(pair[1], F_GETFL) & O_NONBLOCK) && fcntl(pair[1], F_GETFD) == FD_CLOEXEC);
    REQUIRE(read(last, found, BYTES) == 5 && memcmp(found, "words", 5) == 0 && read(last, found, 1) == 0);
}
