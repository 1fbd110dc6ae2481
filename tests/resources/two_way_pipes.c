/* Pipes that are open for reading and writing at once: a named one, as in daemons, and one without a name. */
#include "resource.h"

static int named, plain[2], both;

static void set_up(void) {
    char path[64];
    REQUIRE(mkfifo(path_of("fifo"), 0600) == 0);
    named = open(path_of("fifo"), O_RDWR | O_NONBLOCK);
    REQUIRE(named >= 0 && write(named, "named", 5) == 5 && pipe2(plain, O_NONBLOCK) == 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", plain[0]);
    both = open(path, O_RDWR | O_NONBLOCK);
    REQUIRE(both >= 0 && write(plain[1], "plain", 5) == 5);
}

static void check(void) {
    char text[16] = {0};
    REQUIRE(read(named, text, sizeof text) == 5 && memcmp(text, "named", 5) == 0, "%s", text);
    REQUIRE(write(named, "x", 1) == 1 && read(named, text, 1) == 1);
    REQUIRE(read(both, text, sizeof text) == 5 && memcmp(text, "plain", 5) == 0, "%s", text);
    close(plain[1]);
    REQUIRE(read(plain[0], text, 1) == -1 && errno == EAGAIN, "the two-way end does not count as a writer");
    REQUIRE(write(both, "y", 1) == 1 && read(plain[0], text, 1) == 1 && text[0] == 'y');
}
