/* A child touches memory whose pages have not been fetched, in shuffled order. Its payload says for how long, so that a
 * test can inject faults in this time. The first few pages take half of the time, after which most pages are still
 * missing. The child uses load instructions, or system calls that read the page.
 * usage: paging MIB
 * payload: NUMBER MILLISECONDS [calls] [held]: with `held`, the child waits for SIGUSR2 after it has touched all pages
 */
#include "../forked.h"

#include <signal.h>

#define SLOW_PAGES 64
#define PAGES_A_STEP 16
#define EXIT_EFAULT 14

/* Returns the page for a step. An odd multiplier visits each page once if the number of pages is a power of two. */
static size_t shuffled(size_t index, size_t pages) { return (index * 0x9e3779b1u + 12345) & (pages - 1); }

/* Lets the kernel read a page: writes the page to a pipe. Then reads the copy from the pipe. */
static void read_by_call(int ends[2], const uint64_t *page, uint64_t *copy) {
    ssize_t written = write(ends[1], page, PAGE_BYTES);
    if (written < 0 && errno == EFAULT) {
        say("efault");
        _exit(EXIT_EFAULT);
    }
    REQUIRE(written == (ssize_t)PAGE_BYTES && read(ends[0], copy, PAGE_BYTES) == (ssize_t)PAGE_BYTES);
}

static void walk(const uint64_t *memory, size_t pages, unsigned long milliseconds, int by_calls) {
    const size_t words = PAGE_BYTES / sizeof *memory;
    uint64_t copy[PAGE_BYTES / sizeof *memory];
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    const long half_ns = (long)milliseconds * 500000;
    struct timespec slow = {.tv_nsec = half_ns / SLOW_PAGES}, fast = {.tv_nsec = half_ns * PAGES_A_STEP / (long)pages};
    for (size_t i = 0; i < pages; i++) {
        size_t page = shuffled(i, pages);
        const uint64_t *at = memory + page * words;
        if (by_calls) {
            read_by_call(ends, at, copy);
            at = copy;
        }
        REQUIRE(holds(at, PAGE_BYTES, page * words), "page %zu of %zu, in step %zu: first word %lx", page, pages, i, at[0]);
        if (i < SLOW_PAGES || i % PAGES_A_STEP == 0) nanosleep(i < SLOW_PAGES ? &slow : &fast, NULL);
    }
}

static sigset_t set_of(int signal) {
    sigset_t set;
    REQUIRE(sigemptyset(&set) == 0 && sigaddset(&set, signal) == 0);
    return set;
}

int main(int count, char **arguments) {
    REQUIRE(count == 2, "usage: paging MIB");
    size_t bytes = strtoul(arguments[1], NULL, 10) << 20, pages = bytes / PAGE_BYTES;
    REQUIRE(pages && (pages & (pages - 1)) == 0, "MIB must be a power of two");
    uint64_t *memory = (uint64_t *)map_anonymous(bytes);
    fill(memory, bytes, 0);

    char payload[PAYLOAD_BYTES_MAX];
    sigset_t told = set_of(SIGUSR2);
    REQUIRE(sigprocmask(SIG_BLOCK, &told, NULL) == 0);
    ready(0);
    await_fork(payload);

    unsigned long number = 0, milliseconds = 0;
    REQUIRE(sscanf(payload, "%lu %lu", &number, &milliseconds) == 2, "payload: NUMBER MILLISECONDS [calls] [held]");
    walk(memory, pages, milliseconds, strstr(payload, "calls") != NULL);
    if (strstr(payload, "held")) REQUIRE(sigwaitinfo(&told, NULL) == SIGUSR2);
    finish(payload, 0);
}
