/* Common parts of the programs of this directory, with `main`. Each program has one kernel resource: set_up() makes it,
 * and check() tests that it is unchanged, in a child and in the parent.
 *
 *  program ─ set_up ─ `ready PID 0` ─ `tick …` every 2 ms ─┬─ payload found: a child ──────┬─ check ─ `PASS`, status 0
 *                                                          └─ file ARGUMENT found: parent ─┘       `FAIL …`, status 1
 */
#pragma once

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAYLOAD_PATH "/run/farfork/payload"
#define PAGE_BYTES 4096UL
#define TICK_NS 2000000L
#define PATH_BYTES_MAX 256

/* Longest wait for an event, on a busy machine, in milliseconds. */
#define PATIENCE_MS 40000

static int is_child;
static char directory[PATH_BYTES_MAX]; /* the program's own directory, in which it may leave files */

static void set_up(void);
static void check(void);

/* Ends the program if a condition is false, and prints the position, the condition and an optional text. */
#define REQUIRE(condition, ...)                                                                                        \
    do {                                                                                                               \
        if (!(condition)) differs(__FILE__, __LINE__, #condition, " " __VA_ARGS__);                                     \
    } while (0)

__attribute__((noreturn, format(printf, 4, 5), unused)) static void differs(const char *file, int line,
                                                                            const char *condition, const char *format,
                                                                            ...) {
    int error = errno;
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    dprintf(STDOUT_FILENO, "FAIL %s:%d: %s%s (errno: %s)\n", file, line, condition, text, strerror(error));
    _exit(1);
}

/* Calls `remove` in another process when the program has ended in any way. That process waits for the end of a pipe,
 * whose copy in a child has no effect. */
__attribute__((unused)) static void at_end(void (*remove)(void)) {
    int ends[2];
    char byte;
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        close(ends[1]), close(STDIN_FILENO), close(STDOUT_FILENO), close(STDERR_FILENO);
        while (read(ends[0], &byte, 1) > 0) continue;
        remove();
        _exit(0);
    }
    close(ends[0]);
}

/* Returns a path in the program's directory. */
__attribute__((unused)) static const char *path_of(const char *name) {
    static char paths[8][2 * PATH_BYTES_MAX];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

__attribute__((unused)) static uint64_t now_ns(clockid_t clock) {
    struct timespec now;
    REQUIRE(clock_gettime(clock, &now) == 0);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Waits until a condition holds, at most PATIENCE_MS. The value is whether it holds. */
#define COMES_TRUE(condition)                                                                                          \
    __extension__({                                                                                                    \
        int holds = 0;                                                                                                 \
        for (int left_ms = PATIENCE_MS; !(holds = (condition)) && left_ms > 0; left_ms--) usleep(1000);                 \
        holds;                                                                                                         \
    })

__attribute__((unused)) static void block(int signal) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    REQUIRE(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
}

/* Waits for a blocked signal and takes it. */
__attribute__((unused)) static siginfo_t take(int signal) {
    sigset_t set;
    siginfo_t info;
    struct timespec patience = {.tv_sec = PATIENCE_MS / 1000};
    sigemptyset(&set);
    sigaddset(&set, signal);
    REQUIRE(sigtimedwait(&set, &info, &patience) == signal, "signal %d", signal);
    return info;
}

__attribute__((unused)) static char *map_private(size_t bytes, int protection) {
    void *at = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(at != MAP_FAILED);
    return (char *)at;
}

/* Returns whether a byte can be read, tested in a forked process. */
__attribute__((unused)) static int is_readable(const volatile char *at) {
    int status;
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        (void)*at;
        _exit(0);
    }
    REQUIRE(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status);
}

/* Stores the rest of the first line of a file that begins with `begin`. Returns whether there is such a line. */
__attribute__((unused)) static int read_line(const char *path, const char *begin, char *line, size_t bytes) {
    FILE *file = fopen(path, "re");
    REQUIRE(file, "%s", path);
    int found = 0;
    while (!found && fgets(line, (int)bytes, file)) found = strncmp(line, begin, strlen(begin)) == 0;
    fclose(file);
    if (found) memmove(line, line + strlen(begin), strlen(line + strlen(begin)) + 1);
    return found;
}

/* Returns whether the mapping that contains an address has a flag (proc_pid_smaps(5), VmFlags). */
__attribute__((unused)) static int area_has_flag(const void *at, const char *flag) {
    char line[1024], wanted[8];
    unsigned long start, end;
    int is_inside = 0, has = 0;
    FILE *file = fopen("/proc/self/smaps", "re");
    REQUIRE(file);
    snprintf(wanted, sizeof wanted, " %s", flag);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2) is_inside = start <= (uintptr_t)at && (uintptr_t)at < end;
        if (is_inside && strncmp(line, "VmFlags:", 8) == 0) has = strstr(line, wanted) != NULL;
    }
    fclose(file);
    return has;
}

int main(int count, char **arguments) {
    struct timespec tick = {.tv_sec = 0, .tv_nsec = TICK_NS};
    REQUIRE(count == 3, "usage: %s DIRECTORY FILE", arguments[0]);
    snprintf(directory, sizeof directory, "%s", arguments[1]);
    set_up();
    dprintf(STDOUT_FILENO, "ready %d 0\n", getpid());
    while (access(arguments[2], F_OK) != 0) {
        if (access(PAYLOAD_PATH, F_OK) == 0) {
            is_child = 1;
            break;
        }
        dprintf(STDOUT_FILENO, "tick %llu\n", (unsigned long long)now_ns(CLOCK_MONOTONIC) / 1000);
        nanosleep(&tick, NULL);
    }
    check();
    dprintf(STDOUT_FILENO, "PASS\n");
    _exit(0);
}
