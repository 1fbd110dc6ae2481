/* The owner and the signal for readiness of a descriptor (F_SETOWN, F_SETSIG, O_ASYNC). */
#include "resource.h"

static int ends[2];

static void set_up(void) {
    REQUIRE(pipe2(ends, O_NONBLOCK) == 0 && fcntl(ends[0], F_SETOWN, getpid()) == 0);
    block(SIGRTMIN + 3);
    REQUIRE(fcntl(ends[0], F_SETSIG, SIGRTMIN + 3) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK | O_ASYNC) == 0);
}

static void check(void) {
    REQUIRE(fcntl(ends[0], F_GETFL) & O_ASYNC, "O_ASYNC is lost");
    REQUIRE(fcntl(ends[0], F_GETOWN) == getpid(), "owner %d", fcntl(ends[0], F_GETOWN));
    REQUIRE(fcntl(ends[0], F_GETSIG) == SIGRTMIN + 3, "signal %d", fcntl(ends[0], F_GETSIG));
    REQUIRE(write(ends[1], "x", 1) == 1 && take(SIGRTMIN + 3).si_fd == ends[0]);
}
