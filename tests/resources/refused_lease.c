/* A write lease, which ends when another process opens the file: not carried. */
#include "resource.h"

static int fd;

static void set_up(void) {
    block(SIGIO);
    fd = open(path_of("leased"), O_CREAT | O_RDWR, 0600);
    REQUIRE(fd >= 0 && fcntl(fd, F_SETLEASE, F_WRLCK) == 0);
}

static void check(void) {
    sigset_t pending;
    REQUIRE(fcntl(fd, F_GETLEASE) == F_WRLCK && sigpending(&pending) == 0 && !sigismember(&pending, SIGIO));
}
