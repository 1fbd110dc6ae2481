/* A process that has /dev/tty open, its controlling terminal: not carried. */
#include "resource.h"

#include <sys/prctl.h>

static pid_t leader;

static void set_up(void) {
    int ends[2], master = posix_openpt(O_RDWR | O_NOCTTY);
    char byte;
    REQUIRE(master >= 0 && unlockpt(master) == 0 && pipe(ends) == 0 && (leader = fork()) >= 0);
    if (leader == 0) {
        int slave = prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && setsid() > 0 ? open(ptsname(master), O_RDWR) : -1;
        if (slave < 0 || open("/dev/tty", O_RDWR) < 0 || write(ends[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    REQUIRE(read(ends[0], &byte, 1) == 1);
}

static void check(void) {
    int status;
    REQUIRE(kill(leader, SIGKILL) == 0 && waitpid(leader, &status, 0) == leader && WTERMSIG(status) == SIGKILL);
}
