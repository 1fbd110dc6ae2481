/* A process that has created a time namespace for its children (unshare(2), CLONE_NEWTIME), with clocks far ahead. The
 * kernel does not show the offsets of that namespace: not carried. */
#include "resource.h"

#include <sched.h>

static uint64_t began_ns;

static void set_up(void) {
    began_ns = now_ns(CLOCK_MONOTONIC);
    REQUIRE(unshare(CLONE_NEWTIME) == 0);
    int offsets = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
    REQUIRE(write(offsets, "monotonic 1000000 0\n", 20) == 20 && close(offsets) == 0);
}

static void check(void) {
    uint64_t passed_ns = now_ns(CLOCK_MONOTONIC) - began_ns;
    REQUIRE(passed_ns < 1000000000000000ull, "the process has the clock of the namespace");
    int status;
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) _exit(now_ns(CLOCK_MONOTONIC) - began_ns >= 1000000000000000ull ? 0 : 1);
    REQUIRE(waitpid(pid, &status, 0) == pid && status == 0, "a child process has its parent's clock");
}
