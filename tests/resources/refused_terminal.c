/* The end that drives a pseudo-terminal which another process uses: not carried without that process. */
#include "resource.h"

#include <sys/prctl.h>

static int master;

static void set_up(void) {
    master = posix_openpt(O_RDWR | O_NOCTTY);
    REQUIRE(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    REQUIRE(slave >= 0);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    REQUIRE(close(slave) == 0);
}

static void check(void) {
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    char text[16] = {0};
    REQUIRE(slave >= 0 && write(slave, "out", 3) == 3 && read(master, text, sizeof text) == 3);
}
