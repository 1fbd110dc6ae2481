/* Functions that the test programs share. Each program starts as a parent: it makes its state, prints `ready PID HASH`,
 * and then a timestamp every 2 ms, so that a pause is visible as a gap.
 *
 * When the program finds a payload, it is a child. A child checks its state, prints `result NUMBER VALUE`, and exits
 * with 42. On an error it prints the reason on stderr, and exits with 1.
 */
#pragma once

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define PAYLOAD_PATH "/run/farfork/payload"
#define PAYLOAD_BYTES_MAX 256
#define TICK_NS 2000000L
#define PAGE_BYTES 4096UL
#define EXIT_RIGHT 42
#define EXIT_WRONG 1

/* If the condition does not hold, ends the program with a message that has the location and the reason. */
#define REQUIRE(condition, ...)                                                                                        \
    do {                                                                                                               \
        if (!(condition)) wrong(__FILE__, __LINE__, #condition, " " __VA_ARGS__);                                       \
    } while (0)

__attribute__((noreturn, format(printf, 4, 5), unused)) static void wrong(const char *file, int line,
                                                                          const char *condition, const char *format,
                                                                          ...) {
    int error = errno;
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    dprintf(STDERR_FILENO, "wrong: %s:%d: %s%s (errno: %s)\n", file, line, condition, text, strerror(error));
    _exit(EXIT_WRONG);
}

/* Makes the calling process end when its parent ends, or now if the parent has already ended. So a killed parent leaves
 * no process. */
__attribute__((unused)) static void end_with_parent(pid_t parent) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(EXIT_WRONG);
}

/* ---- for code that must run only in a container ---- */

#define NAMESPACE_BYTES_MAX 64

/* Name of the parent's pid namespace, which may be the host's. */
static char parents_namespace[NAMESPACE_BYTES_MAX];

__attribute__((unused)) static void read_pid_namespace(char name[NAMESPACE_BYTES_MAX]) {
    ssize_t length = readlink("/proc/self/ns/pid", name, NAMESPACE_BYTES_MAX - 1);
    REQUIRE(length > 0, "the pid namespace cannot be read");
    name[length] = 0;
}

/* Stores the name of the parent's pid namespace. Must be called first: a child finds the name in its copy of the
 * memory. */
__attribute__((unused)) static void remember_pid_namespace(void) { read_pid_namespace(parents_namespace); }

/* Ends the program if its pid namespace is the same as its parent's: outside of a container, the code that follows
 * would harm the host. */
__attribute__((unused)) static void require_container(void) {
    char own[NAMESPACE_BYTES_MAX];
    read_pid_namespace(own);
    REQUIRE(parents_namespace[0] != 0 && strcmp(own, parents_namespace) != 0,
            "refused: this is dangerous, and the program is not in a container: %s, as its parent", own);
}

/* Prints a line with one write(2), so that lines of several threads do not mix. Ends the process if the pipe has no
 * reader. */
__attribute__((format(printf, 1, 2), unused)) static void say(const char *format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    line[length++] = '\n';
    if (write(STDOUT_FILENO, line, (size_t)length) != length) _exit(EXIT_WRONG);
}

__attribute__((unused)) static uint64_t monotonic_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* A sleep of 1 ms, for WAIT_FOR_STOP. */
__attribute__((unused)) static const struct timespec nap = {0, 1000000};

/* Assembly that waits until the int `stop` is set: spins for some 0.3 ms, sleeps for 1 ms, and so on. It changes only the
 * clobbered registers. A thread that always runs, in a session whose other threads sleep and wake, can keep all other
 * processes from its CPU on Linux 6.18.44 (docs/decisions/023-scheduling-stalls.md). */
#define WAIT_FOR_STOP                                                                                                  \
    "1: movl $10000, %%ecx\n"                                                                                          \
    "2: pause\n cmpl $0, (%[stop])\n jne 3f\n decl %%ecx\n jnz 2b\n"                                                   \
    "movl $35, %%eax\n movq %[nap], %%rdi\n xorl %%esi, %%esi\n syscall\n jmp 1b\n" /* nanosleep(2) */                 \
    "3:\n"
#define WAIT_INPUTS [stop] "r"(&stop), [nap] "r"(&nap)
#define WAIT_CLOBBERS "memory", "cc", "rax", "rcx", "rdi", "rsi", "r11"

/* SplitMix64: returns the word that belongs to an index, so that test data need not be stored. */
__attribute__((unused)) static uint64_t word_of(uint64_t index) {
    uint64_t z = (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

__attribute__((unused)) static void fill(uint64_t *words, size_t bytes, uint64_t first) {
    for (size_t i = 0; i < bytes / sizeof *words; i++) words[i] = word_of(first + i);
}

/* Returns whether memory still has the data that fill() wrote. */
__attribute__((unused)) static int holds(const uint64_t *words, size_t bytes, uint64_t first) {
    for (size_t i = 0; i < bytes / sizeof *words; i++)
        if (words[i] != word_of(first + i)) return 0;
    return 1;
}

__attribute__((unused)) static int is_zero(const void *memory, size_t bytes) {
    const unsigned char *at = (const unsigned char *)memory;
    for (size_t i = 0; i < bytes; i++)
        if (at[i]) return 0;
    return 1;
}

/* Returns a hash (FNV-1a over whole words). */
__attribute__((unused)) static uint64_t hash_of(const uint64_t *words, size_t bytes) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes / sizeof *words; i++) hash = (hash ^ words[i]) * 0x100000001b3u;
    return hash;
}

__attribute__((unused)) static void *map_anonymous(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(at != MAP_FAILED);
    return at;
}

/* Reads the payload. Returns 0 if there is none, as in a parent. */
__attribute__((unused)) static int find_payload(char payload[PAYLOAD_BYTES_MAX]) {
    int fd = open(PAYLOAD_PATH, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t length = read(fd, payload, PAYLOAD_BYTES_MAX - 1);
    REQUIRE(length >= 0, "the payload cannot be read");
    close(fd);
    payload[length] = 0;
    payload[strcspn(payload, "\n")] = 0;
    return 1;
}

__attribute__((unused)) static void ready(uint64_t hash) { say("ready %d %llu", getpid(), (unsigned long long)hash); }

/* Prints timestamps until it finds a payload, so until this process is a child. */
__attribute__((unused)) static void await_fork(char payload[PAYLOAD_BYTES_MAX]) {
    struct timespec tick = {.tv_sec = 0, .tv_nsec = TICK_NS};
    while (!find_payload(payload)) {
        say("tick %llu", (unsigned long long)monotonic_us());
        nanosleep(&tick, NULL);
    }
}

/* Prints the child's answer: the number at the start of its payload, then the sum of that number and the hash. */
__attribute__((noreturn, unused)) static void finish(const char *payload, uint64_t hash) {
    unsigned long long number = strtoull(payload, NULL, 10);
    say("result %llu %llu", number, (unsigned long long)(hash + number));
    _exit(EXIT_RIGHT);
}
