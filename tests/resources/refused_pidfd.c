/* A pidfd of another process: not carried. */
#include "resource.h"

#include <sys/prctl.h>

static int fd;

static void set_up(void) {
    pid_t other = fork();
    if (other == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    fd = (int)syscall(SYS_pidfd_open, other, 0);
    REQUIRE(fd >= 0);
}

static void check(void) { REQUIRE(syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0) == 0); }
