/* A child process that may not fork because of RLIMIT_NPROC, like the unprivileged process of sshd. A capture needs to
 * clone it: not carried. */
#include "resource.h"

#include <sys/resource.h>

enum { NOBODY = 65534 };

static pid_t other;

static void set_up(void) {
    int ends[2];
    char byte;
    pid_t self = getpid();
    REQUIRE(pipe(ends) == 0 && (other = fork()) >= 0);
    if (other == 0) {
        const struct rlimit none = {0, 0};
        if (setresuid(NOBODY, NOBODY, NOBODY) != 0 || setrlimit(RLIMIT_NPROC, &none) != 0) _exit(1);
        if (fork() >= 0 || errno != EAGAIN || write(ends[1], "x", 1) != 1) _exit(2);
        while (getppid() == self) usleep(10000);
        _exit(98);
    }
    REQUIRE(read(ends[0], &byte, 1) == 1);
}

static void check(void) {
    int status;
    unsigned long soft, hard;
    char path[64], line[128];
    snprintf(path, sizeof path, "/proc/%d/limits", other);
    REQUIRE(read_line(path, "Max processes", line, sizeof line) && sscanf(line, "%lu %lu", &soft, &hard) == 2, "%s", line);
    REQUIRE(soft == 0 && hard == 0, "%lu, %lu", soft, hard);
    REQUIRE(kill(other, SIGKILL) == 0 && waitpid(other, &status, 0) == other && WTERMSIG(status) == SIGKILL);
}
