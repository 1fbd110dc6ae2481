/* A signalfd with its mask, modes, and pending signals. */
#include "resource.h"

#include <sys/signalfd.h>

static int fd;

static void set_up(void) {
    sigset_t set;
    block(SIGUSR1), block(SIGRTMIN + 4), block(SIGUSR2);
    sigemptyset(&set), sigaddset(&set, SIGUSR1), sigaddset(&set, SIGRTMIN + 4);
    fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    REQUIRE(fd >= 0 && sigqueue(getpid(), SIGRTMIN + 4, (union sigval){.sival_int = 4711}) == 0);
}

static void check(void) {
    struct signalfd_siginfo info;
    REQUIRE(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0) == 1, "no signal can be read");
    REQUIRE(read(fd, &info, sizeof info) == sizeof info && info.ssi_signo == (uint32_t)SIGRTMIN + 4 && info.ssi_int == 4711);
    REQUIRE(kill(getpid(), SIGUSR2) == 0 && read(fd, &info, sizeof info) == -1 && errno == EAGAIN);
    REQUIRE(kill(getpid(), SIGUSR1) == 0 && read(fd, &info, sizeof info) == sizeof info && info.ssi_signo == SIGUSR1);
    REQUIRE(fcntl(fd, F_GETFD) == FD_CLOEXEC);
}
