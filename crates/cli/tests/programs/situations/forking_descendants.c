/* A program whose child forks processes for as long as its payload says. The forked processes fork others, up to the
 * third generation. The child itself touches none of the shared data, so every page of it that a forked process touches
 * is missing at first. Each process checks all data that it reads.
 *
 * usage: forking_descendants MIB
 * payload: NUMBER MILLISECONDS [waiting]: with `waiting`, all processes are forked at once, and touch memory after
 * MILLISECONDS
 */
#include "../forked.h"

#include <sys/wait.h>

#define GENERATIONS 3
#define PAGES_EACH 3

static const uint64_t *memory;
static size_t pages;
static struct timespec wait_time; /* time before a process touches memory */

static uint64_t touch(uint64_t draw) {
    const size_t words = PAGE_BYTES / sizeof *memory;
    for (int i = 0; i < PAGES_EACH; i++) {
        draw = word_of(draw);
        size_t page = draw % pages;
        REQUIRE(holds(memory + page * words, PAGE_BYTES, page * words), "page %zu of process %d: first word %lx", page,
                getpid(), memory[page * words]);
    }
    return draw;
}

static void reap(pid_t pid) {
    int status = 0;
    REQUIRE(waitpid(pid, &status, 0) == pid);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0, "process %d ended with status %x", pid, status);
}

static void descend(uint64_t draw, int generation) {
    if (wait_time.tv_sec == 0 && wait_time.tv_nsec == 0) draw = touch(draw);
    pid_t inner[2] = {0, 0};
    for (int i = 0; generation < GENERATIONS && i < 2; i++) {
        inner[i] = fork();
        REQUIRE(inner[i] >= 0);
        if (inner[i] == 0) {
            descend(draw + (uint64_t)i, generation + 1);
            _exit(0);
        }
    }
    nanosleep(&wait_time, NULL);
    touch(draw);
    for (int i = 0; i < 2; i++)
        if (inner[i] > 0) reap(inner[i]);
}

int main(int count, char **arguments) {
    REQUIRE(count == 2, "usage: forking_descendants MIB");
    size_t bytes = strtoul(arguments[1], NULL, 10) << 20;
    uint64_t *filled = (uint64_t *)map_anonymous(bytes);
    fill(filled, bytes, 0);
    memory = filled;
    pages = bytes / PAGE_BYTES;

    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);

    unsigned long number = 0, milliseconds = 0;
    REQUIRE(sscanf(payload, "%lu %lu", &number, &milliseconds) == 2, "payload: NUMBER MILLISECONDS [waiting]");
    if (strstr(payload, "waiting"))
        wait_time = (struct timespec){.tv_sec = (time_t)(milliseconds / 1000), .tv_nsec = (long)(milliseconds % 1000) * 1000000};
    const uint64_t end_us = monotonic_us() + milliseconds * 1000;
    for (uint64_t round = 0; monotonic_us() < end_us; round++) {
        pid_t pid = fork();
        REQUIRE(pid >= 0);
        if (pid == 0) {
            descend(word_of(number << 32 | round), 1);
            _exit(0);
        }
        reap(pid);
    }
    finish(payload, 0);
}
