/* A pipe in packet mode (O_DIRECT): its packets keep their boundaries. */
#include "resource.h"

static int ends[2];

static void set_up(void) {
    REQUIRE(pipe2(ends, O_DIRECT | O_NONBLOCK) == 0);
    REQUIRE(write(ends[1], "one", 3) == 3 && write(ends[1], "second", 6) == 6 && write(ends[1], "3", 1) == 1);
}

static void check(void) {
    char text[64];
    REQUIRE(read(ends[0], text, sizeof text) == 3 && memcmp(text, "one", 3) == 0, "packets were joined");
    REQUIRE(read(ends[0], text, 2) == 2 && memcmp(text, "se", 2) == 0);
    REQUIRE(read(ends[0], text, sizeof text) == 1 && text[0] == '3', "the rest of a packet was not dropped");
    REQUIRE(write(ends[1], "ab", 2) == 2 && write(ends[1], "c", 1) == 1 && read(ends[0], text, sizeof text) == 2);
}
