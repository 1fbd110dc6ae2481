/* A pseudo-terminal with unread input, which cannot be peeked: not carried. */
#include "resource.h"

#include <termios.h>

static int master, slave;

static void set_up(void) {
    struct termios settings;
    master = posix_openpt(O_RDWR | O_NOCTTY);
    REQUIRE(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    REQUIRE(slave >= 0 && tcgetattr(slave, &settings) == 0);
    cfmakeraw(&settings);
    REQUIRE(tcsetattr(slave, TCSANOW, &settings) == 0 && write(master, "typed", 5) == 5);
}

static void check(void) {
    char text[16] = {0};
    REQUIRE(read(slave, text, sizeof text) == 5 && strcmp(text, "typed") == 0);
}
