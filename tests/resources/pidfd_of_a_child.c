/* A pidfd of a child process. In a child, it names the copy of that process, and can be waited for. */
#include "resource.h"

static pid_t other;
static int fd;

static void set_up(void) {
    pid_t root = getpid();
    REQUIRE((other = fork()) >= 0);
    if (other == 0)
        while (getppid() == root) usleep(10000);
    fd = (int)syscall(SYS_pidfd_open, other, 0);
    REQUIRE(fd >= 0);
}

static void check(void) {
    siginfo_t info;
    REQUIRE(syscall(SYS_pidfd_send_signal, fd, SIGTERM, NULL, 0) == 0);
    REQUIRE(waitid(P_PIDFD, (id_t)fd, &info, WEXITED) == 0 && info.si_pid == other);
    REQUIRE(info.si_code == CLD_KILLED && info.si_status == SIGTERM);
}
