// A program that changes its memory at a high rate, as allocators, garbage collectors and servers do, and prints how
// long that took.
//
// As a parent it fills MIB of private memory and waits on standard input. At the end of the input (in a child it is
// /dev/null) it reads the operation from the file PAYLOAD. If the file does not exist, this is the parent and its
// caller has gone, so it exits.
#include "parent.h"

#include <atomic>
#include <cinttypes>
#include <csignal>
#include <cstring>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

constexpr size_t PAGE_BYTES = 4096, PAGE_WORDS = PAGE_BYTES / sizeof(uint64_t);
constexpr size_t BLOCK_PAGES = 16;
constexpr int PROCESSES = 100;
constexpr int PAGES_PER_PROCESS = 32;
constexpr suseconds_t SIGNAL_US = 200;

uint64_t *memory;
size_t pages;
// The number of the last write to each page.
std::vector<uint32_t> writings;
std::atomic<uint64_t> wrong;
uint64_t state = 1;

uint64_t drawn(uint64_t below) { return mixed(state += 0x9e3779b97f4a7c15u) % below; }

void fill(uint64_t *words, size_t page, uint32_t writing) {
    for (size_t word = 0; word < PAGE_WORDS; word++) words[word] = mixed((uint64_t{writing} << 40) + page * PAGE_WORDS + word + 1);
}

// Checks the first word, the last word and one between. To check every word would take most of the time.
bool is_right(const volatile uint64_t *words, size_t page, uint32_t writing) {
    for (size_t word : {size_t{0}, page % PAGE_WORDS, PAGE_WORDS - 1})
        if (words[word] != mixed((uint64_t{writing} << 40) + page * PAGE_WORDS + word + 1)) return false;
    return true;
}

void verify_page(size_t page) { wrong += !is_right(memory + page * PAGE_WORDS, page, writings[page]); }

void *mapped(size_t bytes) {
    void *area = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED) fail("mmap");
    return area;
}

void decay() {
    for (size_t round = 0; round < pages / 4; round++) {
        size_t first = drawn(pages - BLOCK_PAGES), count = 1 + drawn(BLOCK_PAGES);
        for (size_t page = first; page < first + count; page++) verify_page(page);
        auto *words = memory + first * PAGE_WORDS;
        if (madvise(words, count * PAGE_BYTES, round % 2 ? MADV_FREE : MADV_DONTNEED) != 0) fail("madvise");
        for (size_t page = first; page < first + count; page++) fill(memory + page * PAGE_WORDS, page, ++writings[page]);
    }
    for (size_t page = 0; page < pages; page++) verify_page(page);
}

void remap() {
    size_t bytes = BLOCK_PAGES * PAGE_BYTES;
    std::vector<uint64_t *> blocks;
    for (size_t block = 0; block < pages / BLOCK_PAGES; block++) blocks.push_back(memory + block * BLOCK_PAGES * PAGE_WORDS);
    for (size_t round = 0; round < 4 * blocks.size(); round++) {
        size_t block = drawn(blocks.size()), page = block * BLOCK_PAGES + drawn(BLOCK_PAGES);
        void *to = mapped(2 * bytes);
        if (mremap(blocks[block], bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to) fail("mremap");
        // The second half is the block's growth. It is unmapped again.
        void *grown = mremap(to, bytes, bytes, 0);
        if (grown != to || munmap(static_cast<char *>(to) + bytes, bytes) != 0) fail("munmap");
        grown = mremap(to, bytes, 2 * bytes, MREMAP_MAYMOVE);
        if (grown == MAP_FAILED || mremap(grown, 2 * bytes, bytes, 0) != grown) fail("mremap");
        blocks[block] = static_cast<uint64_t *>(grown);
        wrong += !is_right(blocks[block] + page % BLOCK_PAGES * PAGE_WORDS, page, writings[page]);
    }
    for (size_t page = 0; page < pages; page++)
        wrong += !is_right(blocks[page / BLOCK_PAGES] + page % BLOCK_PAGES * PAGE_WORDS, page, writings[page]);
}

void collect() {
    size_t spare = pages;
    for (int round = 0; round < 6; round++) {
        size_t space = round % 2 ? pages : 2 * pages;
        auto *to = static_cast<uint64_t *>(mapped(space * PAGE_BYTES));
        for (size_t page = 0; page < pages; page++) {
            verify_page(page);
            memcpy(to + page * PAGE_WORDS, memory + page * PAGE_WORDS, PAGE_BYTES);
        }
        // Data that the program creates until the next collection.
        for (size_t page = pages; page < space; page += 4) fill(to + page * PAGE_WORDS, page, 1);
        if (munmap(memory, spare * PAGE_BYTES) != 0) fail("munmap");
        memory = to;
        spare = space;
    }
}

// Forks a chain of `left` processes, each from the previous one. All run at the same time.
void fork_on(int left) {
    pid_t other = left > 0 ? fork() : -1;
    if (left > 0 && other < 0) fail("fork");
    if (other == 0) {
        state += static_cast<uint64_t>(left);
        wrong = 0;
        fork_on(left - 1);
        for (int i = 0; i < PAGES_PER_PROCESS; i++) {
            size_t page = drawn(pages);
            verify_page(page);
            fill(memory + page * PAGE_WORDS, page, ++writings[page]);
            verify_page(page);
        }
        _exit(wrong > 0);
    }
    if (other < 0) return;
    int status = 0;
    if (waitpid(other, &status, 0) != other) fail("waitpid");
    wrong += status != 0;
}

void on_signal(int) {
    static uint64_t count;
    verify_page(mixed(++count) % pages);
}

void signals() {
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    itimerval every{{0, SIGNAL_US}, {0, SIGNAL_US}}, never{};
    if (sigaction(SIGALRM, &action, nullptr) != 0 || setitimer(ITIMER_REAL, &every, nullptr) != 0) fail("setitimer");
    for (int round = 0; round < 8; round++)
        for (size_t i = 0; i < pages; i++) verify_page(drawn(pages));
    if (setitimer(ITIMER_REAL, &never, nullptr) != 0) fail("setitimer");
}

void churn(const char *what) {
    if (strcmp(what, "decay") == 0) return decay();
    if (strcmp(what, "remap") == 0) return remap();
    if (strcmp(what, "collect") == 0) return collect();
    if (strcmp(what, "forks") == 0) return fork_on(PROCESSES);
    if (strcmp(what, "signals") == 0) return signals();
    fputs("the payload must be the name of an operation\n", stderr);
    exit(1);
}

} // namespace

// Operations:
//
// - decay: like an allocator with decay. Frees pieces (MADV_DONTNEED and MADV_FREE in turn) and fills them again.
// - remap: moves blocks to other addresses, and grows and shrinks them (mremap).
// - collect: like a copying collector. Copies live pages to a new space, twice as large or half, and unmaps the old one.
// - forks: a hundred processes at the same time, forked from each other, verify pages and change their own copies.
// - signals: a signal every 200 µs, whose handler verifies a page, while the program verifies random pages.
//
// Prints `churned US WRONG`: how long it took, and how many pages had wrong contents.
//
// Usage: churn MIB PAYLOAD
int main(int count, char **arguments) {
    if (count != 3) {
        fputs("usage: churn MIB PAYLOAD\n", stderr);
        return 2;
    }
    pages = (strtoull(arguments[1], nullptr, 10) << 20) / PAGE_BYTES;
    memory = static_cast<uint64_t *>(mapped(pages * PAGE_BYTES));
    // Most programs have small pages.
    madvise(memory, pages * PAGE_BYTES, MADV_NOHUGEPAGE);
    writings.resize(pages);
    for (size_t page = 0; page < pages; page++) fill(memory + page * PAGE_WORDS, page, 0);
    char what[32];
    if (!wait_for_payload(arguments[2], what)) return 0;
    int64_t began_ns = now_ns();
    churn(what);
    printf("churned %" PRId64 " %" PRIu64 "\n", (now_ns() - began_ns) / 1000, wrong.load());
    return 0;
}
