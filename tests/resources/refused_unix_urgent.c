/* A Unix stream with a waiting byte of urgent data (MSG_OOB). A reader gets it separately, and a peek cannot tell
 * which byte it is: not carried. */
#include "resource.h"

#include <sys/socket.h>

static int pair[2];

static void set_up(void) {
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && write(pair[0], "12", 2) == 2);
    REQUIRE(send(pair[0], "!", 1, MSG_OOB) == 1 && write(pair[0], "3", 1) == 1);
}

static void check(void) {
    char text[8];
    REQUIRE(read(pair[1], text, sizeof text) == 2 && memcmp(text, "12", 2) == 0);
    REQUIRE(recv(pair[1], text, 1, MSG_OOB) == 1 && text[0] == '!');
    REQUIRE(read(pair[1], text, sizeof text) == 1 && text[0] == '3');
}
