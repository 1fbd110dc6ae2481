/* Read leases, one with its own signal. A process that opens the file to write has to wait, and the holder gets the
 * signal. */
#include "resource.h"

#define CHOSEN (SIGRTMIN + 3)

static int plain, chosen;

static int lease(const char *path, int signal) {
    close(open(path, O_CREAT | O_WRONLY, 0600));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    REQUIRE(fd >= 0 && (signal == 0 || fcntl(fd, F_SETSIG, signal) == 0) && fcntl(fd, F_SETLEASE, F_RDLCK) == 0);
    return fd;
}

static void set_up(void) {
    block(SIGIO), block(CHOSEN);
    plain = lease(path_of("plain"), 0), chosen = lease(path_of("chosen"), CHOSEN);
}

/* Opens the file for writing in another process. This must fail, and the holder must get `signal`. Returns the signal's
 * information. */
static siginfo_t broken(const char *path, int signal) {
    int status;
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) _exit(open(path, O_WRONLY | O_NONBLOCK) == -1 && errno == EWOULDBLOCK ? 0 : 1);
    REQUIRE(waitpid(pid, &status, 0) == pid && status == 0, "another process can open the file for writing");
    return take(signal);
}

static void check(void) {
    REQUIRE(fcntl(plain, F_GETLEASE) == F_RDLCK && fcntl(chosen, F_GETLEASE) == F_RDLCK);
    REQUIRE(fcntl(plain, F_GETSIG) == 0 && fcntl(chosen, F_GETSIG) == CHOSEN && fcntl(chosen, F_GETOWN) == getpid());
    REQUIRE(broken(path_of("chosen"), CHOSEN).si_fd == chosen);
    broken(path_of("plain"), SIGIO);
    REQUIRE(fcntl(chosen, F_SETLEASE, F_UNLCK) == 0 && fcntl(plain, F_SETLEASE, F_UNLCK) == 0);
    REQUIRE(open(path_of("chosen"), O_WRONLY | O_NONBLOCK) >= 0 && open(path_of("plain"), O_WRONLY | O_NONBLOCK) >= 0);
}
