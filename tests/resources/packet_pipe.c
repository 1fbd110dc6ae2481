/* Pipes in packet mode (O_DIRECT). Packets keep their boundaries if the writer has closed its end, or left packet mode; and
 * bytes that are no packet stay so. */
#include "resource.h"

static int ends[2], closed[2], mixed[2];

static void put(int writer, const char *text) {
    REQUIRE(write(writer, text, strlen(text)) == (ssize_t)strlen(text));
}

static void require_read(int reader, size_t most, const char *wanted) {
    char text[64] = "";
    ssize_t bytes = read(reader, text, most);
    REQUIRE(bytes == (ssize_t)strlen(wanted) && memcmp(text, wanted, strlen(wanted)) == 0, "read %zd: %s, not %s", bytes, text,
            wanted);
}

static void set_up(void) {
    REQUIRE(pipe2(ends, O_DIRECT | O_NONBLOCK) == 0 && pipe2(closed, O_DIRECT | O_NONBLOCK) == 0 && pipe(mixed) == 0);
    put(ends[1], "one"), put(ends[1], "second"), put(ends[1], "3");
    put(closed[1], "1"), put(closed[1], "22"), close(closed[1]);
    REQUIRE(fcntl(mixed[1], F_SETFL, O_DIRECT) == 0);
    put(mixed[1], "first"), put(mixed[1], "x");
    REQUIRE(fcntl(mixed[1], F_SETFL, 0) == 0);
    put(mixed[1], "some"), put(mixed[1], "bytes");
}

static void check(void) {
    require_read(ends[0], 64, "one");
    require_read(ends[0], 2, "se");
    require_read(ends[0], 64, "3");
    put(ends[1], "ab"), put(ends[1], "c");
    require_read(ends[0], 64, "ab");
    require_read(closed[0], 64, "1");
    require_read(closed[0], 64, "22");
    require_read(closed[0], 64, "");
    require_read(mixed[0], 2, "fi");
    require_read(mixed[0], 64, "x");
    require_read(mixed[0], 6, "someby");
    put(mixed[1], "!");
    require_read(mixed[0], 64, "tes!");
}
