/* A pidfd of the process itself. */
#include "resource.h"

static int fd;

static void set_up(void) {
    fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    REQUIRE(fd >= 0);
}

static void check(void) {
    char line[128], path[64];
    block(SIGUSR1);
    REQUIRE(syscall(SYS_pidfd_send_signal, fd, SIGUSR1, NULL, 0) == 0);
    REQUIRE(take(SIGUSR1).si_pid == getpid());
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    REQUIRE(read_line(path, "Pid:", line, sizeof line) && atoi(line) == getpid(), "the pidfd is of pid %s", line);
    REQUIRE(fcntl(fd, F_GETFD) == FD_CLOEXEC && poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0) == 0);
}
