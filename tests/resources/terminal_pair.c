/* A pseudo-terminal of which the program has both ends: settings, window size, and what was typed. */
#include "resource.h"

#include <sys/ioctl.h>
#include <termios.h>

static int master, slave;

static void set_up(void) {
    struct termios settings;
    struct winsize size = {.ws_row = 33, .ws_col = 77};
    master = posix_openpt(O_RDWR | O_NOCTTY);
    REQUIRE(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    REQUIRE(slave >= 0 && tcgetattr(slave, &settings) == 0);
    cfmakeraw(&settings);
    REQUIRE(tcsetattr(slave, TCSANOW, &settings) == 0 && ioctl(slave, TIOCSWINSZ, &size) == 0);
    REQUIRE(write(master, "typed", 5) == 5);
}

static void check(void) {
    struct termios settings;
    struct winsize size = {0};
    char text[16] = {0};
    REQUIRE(tcgetattr(slave, &settings) == 0 && !(settings.c_lflag & ICANON));
    REQUIRE(ioctl(master, TIOCGWINSZ, &size) == 0 && size.ws_row == 33 && size.ws_col == 77);
    REQUIRE(read(slave, text, sizeof text) == 5 && strcmp(text, "typed") == 0);
}
