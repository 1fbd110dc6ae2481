/* userfaultfd(2): not carried. */
#include "resource.h"

static int fd;

static void set_up(void) {
    fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    REQUIRE(fd >= 0);
}

static void check(void) { REQUIRE(fcntl(fd, F_GETFD) == FD_CLOEXEC); }
