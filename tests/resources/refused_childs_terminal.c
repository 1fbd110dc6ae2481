/* A child that drives a pseudo-terminal which its parent has not: not carried. */
#include "resource.h"

#include <sys/prctl.h>

static pid_t driver;

static void set_up(void) {
    int ends[2];
    char byte;
    pid_t self = getpid();
    REQUIRE(pipe(ends) == 0 && (driver = fork()) >= 0);
    if (driver == 0) {
        int master = posix_openpt(O_RDWR | O_NOCTTY);
        if (master < 0 || unlockpt(master) != 0 || open(ptsname(master), O_RDWR | O_NOCTTY) < 0) _exit(1);
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != self || write(ends[1], "x", 1) != 1) _exit(2);
        for (;;) pause();
    }
    REQUIRE(read(ends[0], &byte, 1) == 1);
}

static void check(void) {
    int status;
    REQUIRE(kill(driver, SIGKILL) == 0 && waitpid(driver, &status, 0) == driver && WTERMSIG(status) == SIGKILL);
}
