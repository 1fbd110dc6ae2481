/* A terminal with a closed driving end, which no process can create: not carried. */
#include "resource.h"

static int end;

static void set_up(void) {
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    REQUIRE(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    int opened = open(ptsname(master), O_RDWR | O_NOCTTY);
    REQUIRE(opened >= 0 && dup2(opened, master) == master && close(opened) == 0);
    end = master;
}

static void check(void) {
    char byte;
    REQUIRE(read(end, &byte, 1) == 0 && write(end, "x", 1) == -1 && errno == EIO);
}
