/* POSIX locks on a deleted file. They still exclude other processes. */
#include "resource.h"

static int file;

static void set_up(void) {
    struct flock part = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 100, .l_len = 50};
    REQUIRE((file = open(path_of("locked"), O_CREAT | O_RDWR, 0600)) >= 0 && write(file, "0123456789", 10) == 10);
    REQUIRE(unlink(path_of("locked")) == 0 && fcntl(file, F_SETLK, &part) == 0);
}

/* Returns the type of the lock that conflicts with a write lock of another process at a byte, or F_UNLCK. */
static int against(off_t start) {
    struct flock wanted = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = 1};
    int status;
    pid_t pid = fork();
    if (pid == 0) _exit(fcntl(file, F_GETLK, &wanted) == 0 ? wanted.l_type : 99);
    REQUIRE(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void check(void) {
    REQUIRE(against(149) == F_WRLCK, "not held");
    REQUIRE(against(150) == F_UNLCK && against(99) == F_UNLCK);
}
