/* A parent that rewrites all of its memory at each SIGUSR1. Its child requires that all memory is of one generation:
 * that the same rewriting wrote it. The child prints the number of the generation.
 * usage: rewritten_memory MIB
 */
#include "../forked.h"

#include <signal.h>

static volatile sig_atomic_t wanted;
static uint64_t written;

static void want(int signal) {
    (void)signal;
    wanted++;
}

int main(int count, char **arguments) {
    REQUIRE(count == 2, "usage: rewritten_memory MIB");
    size_t bytes = strtoul(arguments[1], NULL, 10) << 20;
    uint64_t *memory = (uint64_t *)map_anonymous(bytes);
    fill(memory, bytes, 0);
    REQUIRE(signal(SIGUSR1, want) != SIG_ERR);

    char payload[PAYLOAD_BYTES_MAX];
    struct timespec tick = {.tv_sec = 0, .tv_nsec = TICK_NS};
    ready(0);
    while (!find_payload(payload)) {
        if (written != (uint64_t)wanted) {
            written = (uint64_t)wanted;
            fill(memory, bytes, written * bytes);
        }
        say("tick %llu", (unsigned long long)monotonic_us());
        nanosleep(&tick, NULL);
    }
    REQUIRE(holds(memory, bytes, written * bytes), "the memory is not all of generation %llu", (unsigned long long)written);
    finish(payload, written);
}
