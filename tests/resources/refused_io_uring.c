/* io_uring(7): not carried. */
#include "resource.h"

#include <linux/io_uring.h>

static int ring;

static void set_up(void) {
    struct io_uring_params parameters = {0};
    ring = (int)syscall(SYS_io_uring_setup, 4, &parameters);
    REQUIRE(ring >= 0);
}

static void check(void) { REQUIRE(fcntl(ring, F_GETFD) == FD_CLOEXEC); }
