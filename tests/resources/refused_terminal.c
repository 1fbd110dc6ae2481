/* The driving end of a pseudo-terminal that an unrelated process uses: not carried without that process. */
#include "resource.h"

static int master;

static void set_up(void) {
    int ends[2], status;
    char byte;
    master = posix_openpt(O_RDWR | O_NOCTTY);
    REQUIRE(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0 && pipe2(ends, O_CLOEXEC) == 0);
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    REQUIRE(slave >= 0);
    pid_t parent = fork();
    REQUIRE(parent >= 0);
    if (parent == 0) {
        if (fork() != 0) _exit(0);
        /* Ends with the program, which has the other end of the pipe. */
        close(ends[1]), close(master), close(STDIN_FILENO), close(STDOUT_FILENO), close(STDERR_FILENO);
        while (read(ends[0], &byte, 1) > 0) continue;
        _exit(0);
    }
    REQUIRE(waitpid(parent, &status, 0) == parent && status == 0);
    REQUIRE(close(slave) == 0 && close(ends[0]) == 0);
}

static void check(void) {
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    char text[16] = {0};
    REQUIRE(slave >= 0 && write(slave, "out", 3) == 3 && read(master, text, sizeof text) == 3);
}
