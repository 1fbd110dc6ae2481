/* A program whose children run and change before they are forked in turn. It knows the expected contents of each page,
 * even after many generations.
 * SIGUSR1: writes some pages, discards some, and moves some to other addresses. A forked process checks some pages.
 * Then prints `lived GENERATION`.
 * SIGUSR2: checks the pages that were never changed, and prints `untouched COUNT`.
 * SIGHUP: forks a process that continues like this one, and prints `forked`.
 * SIGALRM: forks some processes that fork others all the time, and prints `storming`. All of these check pages.
 * usage: generations MIB
 * payload: NUMBER; the answer is the sum of the number and the generation
 */
#include "../forked.h"

#include <signal.h>
#include <sys/wait.h>

#define BLOCK_PAGES 16
#define WRITES 48
#define DISCARDS 16
#define MOVES 2
#define LOOKS 64
#define STORMS 3
#define LOOKS_IN_STORM 8
#define WORDS_A_PAGE (PAGE_BYTES / sizeof(uint64_t))
/* Size of the part of the stack that is touched in advance. No call and no signal frame needs more. */
#define STACK_BYTES (32UL << 10)

enum kind { ORIGINAL, WRITTEN, DISCARDED };

struct page {
    enum kind kind;
    uint32_t generation;
};

static volatile sig_atomic_t told_to_live, told_to_look, told_to_fork, told_to_storm;
static sigset_t handled;
static uint64_t **blocks;
static struct page *model;
static size_t pages;
static uint32_t generation;

static void tell(int signal) {
    if (signal == SIGUSR1) told_to_live = 1;
    if (signal == SIGUSR2) told_to_look = 1;
    if (signal == SIGHUP) told_to_fork = 1;
    if (signal == SIGALRM) told_to_storm = 1;
}

static uint64_t *at(size_t page) { return blocks[page / BLOCK_PAGES] + page % BLOCK_PAGES * WORDS_A_PAGE; }

static uint64_t written(size_t page, uint32_t by) { return ((uint64_t)by << 40) + page * WORDS_A_PAGE + 7; }

static void look_at(size_t page) {
    const struct page *expected = &model[page];
    const uint64_t *words = at(page);
    int is_right = expected->kind == ORIGINAL    ? holds(words, PAGE_BYTES, page * WORDS_A_PAGE)
                   : expected->kind == WRITTEN   ? holds(words, PAGE_BYTES, written(page, expected->generation))
                                                 : is_zero(words, PAGE_BYTES);
    REQUIRE(is_right, "page %zu, kind %d of generation %u, in generation %u: first word %lx", page, expected->kind,
            expected->generation, generation, words[0]);
}

static size_t picked(uint64_t number) { return word_of(((uint64_t)generation << 32) + number) % pages; }

static void move_block(size_t block) {
    void *to = map_anonymous(BLOCK_PAGES * PAGE_BYTES);
    void *moved = mremap(blocks[block], BLOCK_PAGES * PAGE_BYTES, BLOCK_PAGES * PAGE_BYTES,
                         MREMAP_MAYMOVE | MREMAP_FIXED, to);
    REQUIRE(moved == to);
    blocks[block] = (uint64_t *)moved;
}

static void have_others_look(uint64_t first, uint64_t looks) {
    pid_t other = fork();
    REQUIRE(other >= 0);
    if (other == 0) {
        for (uint64_t i = 0; i < looks; i++) look_at(picked(first + i));
        _exit(EXIT_RIGHT);
    }
    int status;
    REQUIRE(waitpid(other, &status, 0) == other && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_RIGHT);
}

static void live(void) {
    generation++;
    for (uint64_t i = 0; i < WRITES; i++) {
        size_t page = picked(i);
        fill(at(page), PAGE_BYTES, written(page, generation));
        model[page] = (struct page){WRITTEN, generation};
    }
    for (uint64_t i = 0; i < DISCARDS; i++) {
        size_t page = picked(1000 + i);
        REQUIRE(madvise(at(page), PAGE_BYTES, MADV_DONTNEED) == 0);
        model[page] = (struct page){DISCARDED, generation};
    }
    for (uint64_t i = 0; i < MOVES; i++) move_block(picked(2000 + i) / BLOCK_PAGES);
    have_others_look(3000, LOOKS);
    say("lived %u", generation);
}

static void look_at_untouched(void) {
    size_t count = 0;
    for (size_t page = 0; page < pages; page++) {
        if (model[page].kind != ORIGINAL) continue;
        look_at(page);
        count++;
    }
    say("untouched %zu", count);
}

static void storm(void) {
    for (uint64_t one = 0; one < STORMS; one++) {
        pid_t other = fork();
        REQUIRE(other >= 0);
        for (uint64_t round = one; other == 0; round += STORMS) have_others_look(4000 + round * LOOKS_IN_STORM, LOOKS_IN_STORM);
    }
    say("storming");
}

/* Sleeps with the handled signals unblocked. Everywhere else they are blocked, so that each signal frame is at the same
 * depth of the stack. */
static void sleep_for_tick(void) {
    struct timespec tick = {.tv_nsec = TICK_NS};
    REQUIRE(sigprocmask(SIG_UNBLOCK, &handled, NULL) == 0);
    nanosleep(&tick, NULL);
    REQUIRE(sigprocmask(SIG_BLOCK, &handled, NULL) == 0);
}

__attribute__((noinline)) static void touch_stack(void) {
    volatile unsigned char below[STACK_BYTES];
    for (size_t at = 0; at < sizeof below; at += PAGE_BYTES) below[at] = 0;
}

static void do_as_told(void) {
    if (told_to_storm) {
        told_to_storm = 0;
        storm();
    }
    if (told_to_live) {
        told_to_live = 0;
        live();
    }
    if (told_to_look) {
        told_to_look = 0;
        look_at_untouched();
    }
    if (told_to_fork) {
        told_to_fork = 0;
        pid_t other = fork();
        REQUIRE(other >= 0);
        if (other > 0) say("forked");
    }
}

static void set_up(size_t bytes) {
    pages = bytes / PAGE_BYTES;
    blocks = (uint64_t **)map_anonymous(pages / BLOCK_PAGES * sizeof *blocks);
    model = (struct page *)map_anonymous(pages * sizeof *model);
    uint64_t *memory = (uint64_t *)map_anonymous(bytes);
    fill(memory, bytes, 0);
    for (size_t block = 0; block < pages / BLOCK_PAGES; block++) blocks[block] = memory + block * BLOCK_PAGES * WORDS_A_PAGE;
    static const int SIGNALS[] = {SIGUSR1, SIGUSR2, SIGHUP, SIGALRM};
    struct sigaction action = {.sa_handler = tell};
    sigemptyset(&handled);
    for (size_t i = 0; i < sizeof SIGNALS / sizeof *SIGNALS; i++) {
        REQUIRE(sigaction(SIGNALS[i], &action, NULL) == 0 && sigaddset(&handled, SIGNALS[i]) == 0);
    }
    REQUIRE(sigprocmask(SIG_BLOCK, &handled, NULL) == 0);
}

int main(int count, char **arguments) {
    REQUIRE(count == 2, "usage: generations MIB");
    set_up(strtoul(arguments[1], NULL, 10) << 20);
    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    uint64_t sum = 0;
    while (!find_payload(payload)) {
        say("tick %llu", (unsigned long long)monotonic_us());
        sleep_for_tick();
        /* Touch the memory that the process needs to check other pages. */
        touch_stack();
        for (size_t page = 0; page < pages; page += 64) sum += model[page].kind + (uint64_t)blocks[page / BLOCK_PAGES];
        do_as_told();
    }
    REQUIRE(sum != 1);
    for (size_t page = 0; page < pages; page++) look_at(page);
    finish(payload, generation);
}
