// A program whose children change their memory at random and verify every page, including children of children.
//
// As a parent it fills MIB of private memory and waits on standard input. At the end of the input (in a child it is
// /dev/null) it reads PAYLOAD. If the file does not exist, this is the parent and its caller has gone, so it exits. Its
// other threads wait in system calls (waits.h), which a stop must not disturb.
#include "parent.h"
#include "waits.h"

#include <cerrno>
#include <cinttypes>
#include <csignal>
#include <cstring>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

constexpr size_t PAGE_BYTES = 4096, PAGE_WORDS = PAGE_BYTES / sizeof(uint64_t);
// Size of a moved block, and maximum size of one discard, in pages.
constexpr size_t BLOCK_PAGES = 16;
// Maximum pages that are verified in sequence.
constexpr size_t RUN_PAGES_MAX = 256;
constexpr size_t BLOCK_BYTES = BLOCK_PAGES * PAGE_BYTES;
// Number of random pages that a forked process verifies.
constexpr int PAGES_PER_CHILD = 32;
// Maximum blocks that moves have left mapped and empty.
constexpr size_t EMPTY_BLOCKS_MAX = 16;
constexpr int FIXED = MREMAP_MAYMOVE | MREMAP_FIXED, LEAVING = MREMAP_MAYMOVE | MREMAP_DONTUNMAP;
// Steps between two sleeps, so that other processes get the CPU.
constexpr int STEPS_A_NAP = 8;
constexpr long NAP_NS = 1'000'000;
// Interval at which a waiting process checks whether it is now a child: a copy of the process that began to wait.
constexpr long PAYLOAD_POLL_NS = 50'000'000;
// Values of `holds`. The page has the parent's contents, only zeroes, or what the child wrote in the step with this number:
// FIRST_STEP or higher.
constexpr uint32_t ORIGINAL = 0, GIVEN_BACK = 1, FIRST_STEP = 2;

size_t pages;
uint64_t **blocks;
uint32_t *holds;
uint64_t state, pages_verified;
// Empty blocks that moves have left mapped.
uint64_t *empty_blocks[EMPTY_BLOCKS_MAX];
size_t empty_block_count;

uint64_t drawn(uint64_t below) { return mixed(state += 0x9e3779b97f4a7c15u) % below; }

uint64_t *page_at(size_t page) { return blocks[page / BLOCK_PAGES] + page % BLOCK_PAGES * PAGE_WORDS; }

uint64_t word_of(size_t page, uint32_t step, size_t word) {
    return step == GIVEN_BACK ? 0 : mixed((uint64_t{step} << 40) + page * PAGE_WORDS + word + 1);
}

void *mapped(size_t bytes) {
    void *area = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED) fail("mmap");
    return area;
}

void verify_page(size_t page) {
    const volatile uint64_t *words = page_at(page);
    for (size_t word = 0; word < PAGE_WORDS; word++) {
        uint64_t found = words[word], expected = word_of(page, holds[page], word);
        if (found == expected) continue;
        printf("wrong page %zu of %zu, word %zu: %" PRIx64 " where %" PRIx64 " should be, of step %u\n", page, pages, word,
               found, expected, holds[page]);
        fflush(stdout);
        _exit(1);
    }
    pages_verified++;
}

void write_page(size_t page, uint32_t step) {
    uint64_t *words = page_at(page);
    for (size_t word = 0; word < PAGE_WORDS; word++) words[word] = word_of(page, step, word);
    holds[page] = step;
}

// Discards consecutive pages within a block.
void give_back(size_t page) {
    size_t most = BLOCK_PAGES - page % BLOCK_PAGES, count = 1 + drawn(most);
    if (madvise(page_at(page), count * PAGE_BYTES, MADV_DONTNEED) != 0) fail("madvise");
    for (size_t i = 0; i < count; i++) holds[page + i] = GIVEN_BACK;
}

void require_empty(const uint64_t *block, size_t count) {
    const volatile uint64_t *words = block;
    for (size_t word = 0; word < count * PAGE_WORDS; word++) {
        if (words[word] == 0) continue;
        printf("wrong page %zu of an empty block, word %zu: %" PRIx64 "\n", word / PAGE_WORDS, word % PAGE_WORDS, words[word]);
        fflush(stdout);
        _exit(1);
    }
    pages_verified += count;
}

uint64_t *moved(uint64_t *from, size_t bytes, size_t new_bytes, int flags, void *to) {
    void *now = mremap(from, bytes, new_bytes, flags, to);
    if (now == MAP_FAILED) fail("mremap");
    return static_cast<uint64_t *>(now);
}

void move_block(size_t block) { blocks[block] = moved(blocks[block], BLOCK_BYTES, BLOCK_BYTES, FIXED, mapped(BLOCK_BYTES)); }

// Moves a block. Its old address range stays mapped, and empty.
void move_and_leave(size_t block) {
    uint64_t *place = blocks[block];
    if (empty_block_count == EMPTY_BLOCKS_MAX) {
        require_empty(empty_blocks[0], BLOCK_PAGES);
        if (munmap(empty_blocks[0], BLOCK_BYTES) != 0) fail("munmap");
        empty_blocks[0] = empty_blocks[--empty_block_count];
    }
    blocks[block] = moved(place, BLOCK_BYTES, BLOCK_BYTES, LEAVING, nullptr);
    empty_blocks[empty_block_count++] = place;
}

// Moves a block onto an empty block. The block's own range then either stays mapped and empty, or is unmapped.
void move_onto_empty_block(size_t block) {
    if (empty_block_count == 0) return move_and_leave(block);
    size_t which = drawn(empty_block_count);
    uint64_t *place = blocks[block], *to = empty_blocks[which];
    bool leaves = drawn(2) == 0;
    blocks[block] = moved(place, BLOCK_BYTES, BLOCK_BYTES, FIXED | (leaves ? MREMAP_DONTUNMAP : 0), to);
    empty_blocks[which] = leaves ? place : empty_blocks[--empty_block_count];
}

// Exchanges the addresses of two blocks. Both ranges stay mapped all the time.
void exchange(size_t one, size_t other) {
    if (one == other) return;
    uint64_t *between = moved(blocks[one], BLOCK_BYTES, BLOCK_BYTES, LEAVING, nullptr);
    uint64_t *first = blocks[one], *second = blocks[other];
    moved(second, BLOCK_BYTES, BLOCK_BYTES, FIXED | MREMAP_DONTUNMAP, first);
    moved(between, BLOCK_BYTES, BLOCK_BYTES, FIXED, second);
    blocks[one] = second;
    blocks[other] = first;
}

// Doubles a block, in place or elsewhere, and shrinks it again.
void grow_and_shrink(size_t block) {
    uint64_t *now = moved(blocks[block], BLOCK_BYTES, 2 * BLOCK_BYTES, MREMAP_MAYMOVE, nullptr);
    blocks[block] = now;
    require_empty(now + BLOCK_PAGES * PAGE_WORDS, BLOCK_PAGES);
    bool moves = drawn(2) == 0;
    blocks[block] = moves ? moved(now, 2 * BLOCK_BYTES, BLOCK_BYTES, FIXED, mapped(BLOCK_BYTES))
                          : moved(now, 2 * BLOCK_BYTES, BLOCK_BYTES, 0, nullptr);
}

// Halves a block, and grows it again. The new half is empty.
void shrink_and_grow(size_t block) {
    constexpr size_t HALF = BLOCK_PAGES / 2;
    moved(blocks[block], BLOCK_BYTES, HALF * PAGE_BYTES, 0, nullptr);
    blocks[block] = moved(blocks[block], HALF * PAGE_BYTES, BLOCK_BYTES, MREMAP_MAYMOVE, nullptr);
    for (size_t page = HALF; page < BLOCK_PAGES; page++) holds[block * BLOCK_PAGES + page] = GIVEN_BACK;
}

void remap(size_t block) {
    switch (drawn(6)) {
    case 0: return move_block(block);
    case 1: return move_and_leave(block);
    case 2: return move_onto_empty_block(block);
    case 3: return exchange(block, drawn(pages / BLOCK_PAGES));
    case 4: return grow_and_shrink(block);
    default: return shrink_and_grow(block);
    }
}

// Forks a process that verifies this block, the empty blocks and random pages. If it finds a lost or wrong page, this
// process ends in the same way.
void verify_in_children(size_t block) {
    pid_t other = fork();
    if (other < 0) {
        if (errno == EAGAIN || errno == ENOMEM) return;
        fail("fork");
    }
    if (other == 0) {
        for (size_t page = 0; page < BLOCK_PAGES; page++) verify_page(block * BLOCK_PAGES + page);
        for (size_t which = 0; which < empty_block_count; which++) require_empty(empty_blocks[which], BLOCK_PAGES);
        for (int i = 0; i < PAGES_PER_CHILD; i++) verify_page(drawn(pages));
        _exit(0);
    }
    int status = 0;
    while (waitpid(other, &status, 0) < 0)
        if (errno != EINTR) fail("waitpid");
    if (WIFSIGNALED(status)) raise(WTERMSIG(status));
    if (status != 0) _exit(1);
}

void run_step(uint32_t step) {
    size_t page = drawn(pages);
    switch (drawn(16)) {
    case 0: return give_back(page);
    case 1: return remap(page / BLOCK_PAGES);
    case 2: return verify_in_children(page / BLOCK_PAGES);
    case 3:
    case 4: return write_page(page, step);
    // The child sees the moved block before this process touches it.
    case 6: return remap(page / BLOCK_PAGES), verify_in_children(page / BLOCK_PAGES);
    case 5:
        for (size_t end = page + drawn(RUN_PAGES_MAX); page < pages && page < end; page++) verify_page(page);
        return;
    default: return verify_page(page);
    }
}

void set_up(size_t mib) {
    pages = (mib << 20) / PAGE_BYTES;
    auto *memory = static_cast<uint64_t *>(mapped(pages * PAGE_BYTES));
    blocks = static_cast<uint64_t **>(mapped(pages / BLOCK_PAGES * sizeof *blocks));
    holds = static_cast<uint32_t *>(mapped(pages * sizeof *holds));
    for (size_t block = 0; block < pages / BLOCK_PAGES; block++) blocks[block] = memory + block * BLOCK_PAGES * PAGE_WORDS;
    for (size_t page = 0; page < pages; page++) write_page(page, ORIGINAL);
}

// Waits. Returns true after SIGTERM. Returns false if this process is now a child, a copy of the process that began to
// wait: a child finds a different payload.
template <size_t BYTES> bool wait_for_end(const sigset_t &term, const char *path, const char (&payload)[BYTES]) {
    char now[BYTES];
    for (;;) {
        timespec poll_interval{0, PAYLOAD_POLL_NS};
        if (sigtimedwait(&term, nullptr, &poll_interval) >= 0) return true;
        if (find_payload(path, now) && strcmp(now, payload) != 0) return false;
    }
}

} // namespace

// PAYLOAD holds `SEED MS STAYS`. For MS milliseconds the child verifies pages, in order and at random. It writes some,
// discards some, moves some with each flag of mremap(2), and grows and shrinks some. Processes that it forks verify
// these and others. Then it verifies all pages, and prints `sound LOOKS`: how many pages were verified, byte by byte.
// At the first wrong page it prints `wrong PAGE …` and exits with status 1. A lost page raises SIGBUS, which ends the
// child.
//
// If STAYS is not 0, it runs until SIGTERM, because its own children need it. A child of it finds another payload, verifies
// all pages too, and prints the result.
//
// Usage: memory_walk MIB PAYLOAD
int main(int count, char **arguments) {
    if (count != 3) {
        fputs("usage: memory_walk MIB PAYLOAD\n", stderr);
        return 2;
    }
    set_up(strtoull(arguments[1], nullptr, 10));
    // All threads inherit this mask. Only sigtimedwait(2) in this thread takes the signal: a thread that did not block it
    // would take it at any other time, and end the process (signal(7), "Process-directed signals").
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, nullptr);
    waits::start(arguments[2]);
    char payload[64];
    if (!wait_for_payload(arguments[2], payload)) return 0;
    long ms = 0;
    int stays = 0;
    if (sscanf(payload, "%" SCNu64 " %ld %d", &state, &ms, &stays) != 3) {
        fputs("the payload is SEED MS STAYS\n", stderr);
        return 1;
    }
    int64_t end_ns = now_ns() + ms * 1'000'000;
    for (uint32_t step = FIRST_STEP; now_ns() < end_ns; step++) {
        run_step(step);
        timespec nap{0, NAP_NS};
        if (step % STEPS_A_NAP == 0) nanosleep(&nap, nullptr);
    }
    do {
        for (size_t page = 0; page < pages; page++) verify_page(page);
        for (size_t which = 0; which < empty_block_count; which++) require_empty(empty_blocks[which], BLOCK_PAGES);
        find_payload(arguments[2], payload);
        printf("sound %" PRIu64 "\n", pages_verified);
        fflush(stdout);
    } while (stays && !wait_for_end(term, arguments[2], payload));
    return 0;
}
