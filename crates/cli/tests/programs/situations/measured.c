/* A parent that measures: how long a plain fork(2) of it takes, and, as a child, how long it takes to touch all of its memory
 * in a shuffled order.
 * usage: measured MIB
 * says: fork MICROSECONDS (again and again), touched NANOSECONDS_PER_PAGE
 */
#include "../forked.h"

#include <signal.h>

#define TICKS_A_FORK 10

static uint64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Nobody waits for what is forked here: a child of farfork's would not have it. */
static void measure_fork(void) {
    uint64_t begin = nanoseconds();
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    uint64_t end = nanoseconds();
    REQUIRE(pid > 0);
    say("fork %llu", (unsigned long long)(end - begin) / 1000);
}

/* An odd multiplier visits each page once, when their number is a power of two. */
static uint64_t touch_all(const uint64_t *memory, size_t pages) {
    const size_t words = PAGE_BYTES / sizeof *memory;
    uint64_t begin = nanoseconds();
    for (size_t i = 0; i < pages; i++) {
        size_t page = (i * 0x9e3779b1u + 12345) & (pages - 1);
        REQUIRE(memory[page * words] == word_of(page * words), "page %zu", page);
    }
    return (nanoseconds() - begin) / pages;
}

int main(int count, char **arguments) {
    REQUIRE(count == 2, "usage: measured MIB");
    size_t bytes = strtoul(arguments[1], NULL, 10) << 20, pages = bytes / PAGE_BYTES;
    REQUIRE(pages && (pages & (pages - 1)) == 0, "MIB must be a power of two");
    uint64_t *memory = (uint64_t *)map_anonymous(bytes);
    fill(memory, bytes, 0);

    char payload[PAYLOAD_BYTES_MAX];
    struct timespec tick = {.tv_nsec = TICK_NS};
    signal(SIGCHLD, SIG_IGN);
    ready(0);
    for (unsigned ticks = 0; !find_payload(payload); ticks++) {
        if (ticks % TICKS_A_FORK == 0) measure_fork();
        say("tick %llu", (unsigned long long)monotonic_us());
        nanosleep(&tick, NULL);
    }

    say("touched %llu", (unsigned long long)touch_all(memory, pages));
    finish(payload, 0);
}
