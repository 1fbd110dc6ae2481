/* A standard output that a child of the program forwards to the original output, as `exec > >(tee)` in a shell. A fork
 * has a copy of that child, which forwards to the output of the fork. */
#include "resource.h"

#include <sys/ioctl.h>
#include <sys/prctl.h>

static struct {
    char last[64];
} *shared;

static pid_t reader;
static int before;

/* Reads the program's output, forwards it, and records the last piece. */
static __attribute__((noreturn)) void pass_on(pid_t parent) {
    char bytes[sizeof shared->last];
    ssize_t length;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(1);
    while ((length = read(STDIN_FILENO, bytes, sizeof bytes)) > 0) {
        if (write(STDOUT_FILENO, bytes, (size_t)length) != length) _exit(2);
        memcpy(shared->last, bytes, sizeof bytes);
    }
    _exit(length == 0 ? 0 : 3);
}

static void set_up(void) {
    int ends[2];
    pid_t self = getpid();
    shared = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(shared != MAP_FAILED && pipe(ends) == 0 && (reader = fork()) >= 0);
    if (reader == 0) {
        if (dup2(ends[0], STDIN_FILENO) < 0) _exit(4);
        close(ends[0]), close(ends[1]);
        pass_on(self);
    }
    REQUIRE((before = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 10)) >= 0 && dup2(ends[1], STDOUT_FILENO) == STDOUT_FILENO);
    close(ends[0]), close(ends[1]);
}

/* Returns whether a descriptor of this process and a descriptor of another process are the same file. */
static int is_one_file(int own, pid_t other, int others) {
    char path[64];
    struct stat a, b;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", other, others);
    REQUIRE(fstat(own, &a) == 0 && stat(path, &b) == 0, "%s", path);
    return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static void check(void) {
    static const char line[] = "tick 7\n"; /* like earlier output of the program */
    int status, waiting;
    REQUIRE(is_one_file(STDOUT_FILENO, reader, STDIN_FILENO) && !is_one_file(STDOUT_FILENO, reader, STDOUT_FILENO));
    REQUIRE(is_one_file(before, reader, STDOUT_FILENO));
    REQUIRE(COMES_TRUE(ioctl(STDOUT_FILENO, FIONREAD, &waiting) == 0 && waiting == 0), "the reader leaves output unread");
    REQUIRE(write(STDOUT_FILENO, line, sizeof line - 1) == sizeof line - 1);
    REQUIRE(COMES_TRUE(memcmp(shared->last, line, sizeof line - 1) == 0));
    /* The reader ends when the last write end is closed. No other process has a write end. */
    REQUIRE(dup2(before, STDOUT_FILENO) == STDOUT_FILENO);
    REQUIRE(waitpid(reader, &status, 0) == reader && WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", (unsigned)status);
}
