/* A process that is pid 1 of a pid namespace, with a child, and with an orphaned grandchild that it has adopted. */
#include "resource.h"

static pid_t child, orphan;

static void set_up(void) {
    int ends[2], status;
    REQUIRE(getpid() == 1 && pipe(ends) == 0);
    REQUIRE((child = fork()) >= 0);
    if (child == 0)
        for (;;) pause();
    pid_t between = fork();
    REQUIRE(between >= 0);
    if (between == 0) {
        orphan = fork();
        if (orphan == 0)
            for (;;) pause();
        _exit(write(ends[1], &orphan, sizeof orphan) != sizeof orphan);
    }
    REQUIRE(waitpid(between, &status, 0) == between && status == 0);
    REQUIRE(read(ends[0], &orphan, sizeof orphan) == sizeof orphan);
}

static void check(void) {
    int status;
    char text[16] = "";
    REQUIRE(getpid() == 1 && child > 1 && orphan > 1);
    REQUIRE(!is_child || (readlink("/proc/self", text, sizeof text - 1) == 1 && text[0] == '1'), "/proc/self is %s", text);
    REQUIRE(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    REQUIRE(kill(orphan, SIGTERM) == 0 && waitpid(-1, &status, 0) == orphan && WTERMSIG(status) == SIGTERM);
    /* A signal from its own namespace has no effect on pid 1 if pid 1 has no handler for it. */
    REQUIRE(kill(1, SIGTERM) == 0 && getpid() == 1);
    pid_t own = fork();
    REQUIRE(own >= 0);
    if (own == 0) _exit(getppid() == 1 ? 3 : 4);
    REQUIRE(waitpid(own, &status, 0) == own && WEXITSTATUS(status) == 3);
}
