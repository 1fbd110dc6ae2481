/* A pidfd of a process that does not descend from this one: not carried. */
#include "resource.h"

static int fd;

static void set_up(void) {
    fd = (int)syscall(SYS_pidfd_open, getppid(), 0);
    REQUIRE(fd >= 0);
}

static void check(void) { REQUIRE(syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0) == 0); }
