/* A child process with a deleted root directory (chroot(2), rmdir(2)): not carried. */
#include "resource.h"

static pid_t other;

static void set_up(void) {
    int ends[2];
    char byte;
    pid_t root = getpid();
    REQUIRE(mkdir(path_of("jail"), 0700) == 0 && pipe(ends) == 0 && (other = fork()) >= 0);
    if (other == 0) {
        const char *jail = path_of("jail");
        if (chroot(jail) != 0 || write(ends[1], "x", 1) != 1) _exit(1);
        while (getppid() == root) usleep(10000);
        _exit(98);
    }
    REQUIRE(read(ends[0], &byte, 1) == 1 && rmdir(path_of("jail")) == 0);
}

static void check(void) {
    int status;
    REQUIRE(kill(other, SIGKILL) == 0 && waitpid(other, &status, 0) == other && WTERMSIG(status) == SIGKILL);
}
