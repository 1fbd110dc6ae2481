/* A session with a controlling terminal, and a process in it that has given up the terminal (TIOCNOTTY). A child gets
 * the terminal of its session at its fork, and cannot give it up before it runs: not carried. */
#include "resource.h"

#include <sys/ioctl.h>
#include <sys/prctl.h>

static pid_t leader;

static __attribute__((noreturn)) void live(int ready) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || write(ready, "x", 1) != 1) _exit(1);
    for (;;) pause();
}

static void set_up(void) {
    int ends[2], master = posix_openpt(O_RDWR | O_NOCTTY);
    char bytes[2];
    REQUIRE(master >= 0 && unlockpt(master) == 0 && pipe(ends) == 0 && (leader = fork()) >= 0);
    if (leader == 0) {
        int slave = setsid() > 0 ? open(ptsname(master), O_RDWR) : -1;
        if (slave < 0) _exit(2);
        if (fork() == 0) {
            if (ioctl(slave, TIOCNOTTY) != 0) _exit(3);
            live(ends[1]);
        }
        live(ends[1]);
    }
    REQUIRE(read(ends[0], bytes, 1) == 1 && read(ends[0], bytes, 1) == 1);
}

static void check(void) {
    int status;
    REQUIRE(kill(leader, SIGKILL) == 0 && waitpid(leader, &status, 0) == leader && WTERMSIG(status) == SIGKILL);
}
