/* A child process with its own host name (unshare(2), CLONE_NEWUTS): not carried. */
#include "resource.h"

#include <sched.h>

static pid_t other;

static void set_up(void) {
    int ends[2];
    char byte;
    pid_t root = getpid();
    REQUIRE(pipe(ends) == 0 && (other = fork()) >= 0);
    if (other == 0) {
        if (unshare(CLONE_NEWUTS) != 0 || write(ends[1], "x", 1) != 1) _exit(1);
        while (getppid() == root) usleep(10000);
        _exit(98);
    }
    REQUIRE(read(ends[0], &byte, 1) == 1);
}

static void check(void) {
    int status;
    REQUIRE(kill(other, SIGKILL) == 0 && waitpid(other, &status, 0) == other && WTERMSIG(status) == SIGKILL);
}
