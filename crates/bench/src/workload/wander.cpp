// A program whose children wander through their memory and change it, and know what each page must hold, also after they were
// forked in turn. As a parent it holds MIB of private memory, every byte of it known, and waits on its standard input. In a
// child standard input is /dev/null: the read(2) returns 0, and it opens PAYLOAD, which says `SEED MS STAYS`. For MS milliseconds
// it looks at pages, in order and out of it, writes some, gives some back, moves some elsewhere, and has processes that it
// forks look at others. Then it looks at all of them, and says `sound LOOKS`: how often a page was looked at, byte by byte,
// and was right. At the first page that is not right it says `wrong PAGE …`, and its exit status is 1. A page that is lost
// is SIGBUS, which ends it. If STAYS is not 0 it stays until SIGTERM comes: what is forked from it needs it. What is forked from it then finds
// another payload, looks at all pages, too, and says so. Without the file it ends: it is the parent, and whoever drove it is gone.
//
// usage: wander MIB PAYLOAD
#include "parent.h"

#include <cerrno>
#include <cinttypes>
#include <csignal>
#include <cstring>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

constexpr size_t PAGE_BYTES = 4096, PAGE_WORDS = PAGE_BYTES / sizeof(uint64_t);
// What is moved at once, and given back at most.
constexpr size_t BLOCK_PAGES = 16;
// What is looked at in order at once, at most.
constexpr size_t RUN_PAGES_MAX = 256;
// What a forked process looks at.
constexpr int LOOKS_OF_OTHERS = 32;
// A sleep after so many steps: nobody is to be kept from a CPU by this.
constexpr int STEPS_A_NAP = 8;
constexpr long NAP_NS = 1'000'000;
// Between two looks whether it is another child by now.
constexpr long LOOK_NS = 50'000'000;
// What a page holds: its parent's, nothing, or what the child wrote in a step of this number.
constexpr uint32_t ORIGINAL = 0, GIVEN_BACK = 1, FIRST_STEP = 2;

size_t pages;
uint64_t **blocks;
uint32_t *holds;
uint64_t state, looks;

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

void look_at(size_t page) {
    const volatile uint64_t *words = page_at(page);
    for (size_t word = 0; word < PAGE_WORDS; word++) {
        uint64_t found = words[word], expected = word_of(page, holds[page], word);
        if (found == expected) continue;
        printf("wrong page %zu of %zu, word %zu: %" PRIx64 " where %" PRIx64 " should be, of step %u\n", page, pages, word,
               found, expected, holds[page]);
        fflush(stdout);
        _exit(1);
    }
    looks++;
}

void write_page(size_t page, uint32_t step) {
    uint64_t *words = page_at(page);
    for (size_t word = 0; word < PAGE_WORDS; word++) words[word] = word_of(page, step, word);
    holds[page] = step;
}

// Pages that follow each other, within a block.
void give_back(size_t page) {
    size_t most = BLOCK_PAGES - page % BLOCK_PAGES, count = 1 + drawn(most);
    if (madvise(page_at(page), count * PAGE_BYTES, MADV_DONTNEED) != 0) fail("madvise");
    for (size_t i = 0; i < count; i++) holds[page + i] = GIVEN_BACK;
}

void move_block(size_t block) {
    size_t bytes = BLOCK_PAGES * PAGE_BYTES;
    void *to = mapped(bytes);
    if (mremap(blocks[block], bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to) fail("mremap");
    blocks[block] = static_cast<uint64_t *>(to);
}

// A process that finds a page lost, or wrong, is not alone with that.
void have_others_look() {
    pid_t other = fork();
    if (other < 0) {
        if (errno == EAGAIN || errno == ENOMEM) return;
        fail("fork");
    }
    if (other == 0) {
        for (int i = 0; i < LOOKS_OF_OTHERS; i++) look_at(drawn(pages));
        _exit(0);
    }
    int status = 0;
    while (waitpid(other, &status, 0) < 0)
        if (errno != EINTR) fail("waitpid");
    if (WIFSIGNALED(status)) raise(WTERMSIG(status));
    if (status != 0) _exit(1);
}

void wander(uint32_t step) {
    size_t page = drawn(pages);
    switch (drawn(16)) {
    case 0: return give_back(page);
    case 1: return move_block(page / BLOCK_PAGES);
    case 2: return have_others_look();
    case 3:
    case 4: return write_page(page, step);
    case 5:
        for (size_t end = page + drawn(RUN_PAGES_MAX); page < pages && page < end; page++) look_at(page);
        return;
    default: return look_at(page);
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

// Waits until SIGTERM comes; or until it is not who waited, but forked from that, which its payload tells.
template <size_t BYTES> bool stays_to_the_end(const sigset_t &term, const char *path, const char (&payload)[BYTES]) {
    char now[BYTES];
    for (;;) {
        timespec look{0, LOOK_NS};
        if (sigtimedwait(&term, nullptr, &look) >= 0) return true;
        if (find_payload(path, now) && strcmp(now, payload) != 0) return false;
    }
}

} // namespace

int main(int count, char **arguments) {
    if (count != 3) {
        fputs("usage: wander MIB PAYLOAD\n", stderr);
        return 2;
    }
    set_up(strtoull(arguments[1], nullptr, 10));
    char payload[64];
    if (!wait_for_payload(arguments[2], payload)) return 0;
    long ms = 0;
    int stays = 0;
    if (sscanf(payload, "%" SCNu64 " %ld %d", &state, &ms, &stays) != 3) {
        fputs("the payload is SEED MS STAYS\n", stderr);
        return 1;
    }
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, nullptr);
    int64_t end_ns = now_ns() + ms * 1'000'000;
    for (uint32_t step = FIRST_STEP; now_ns() < end_ns; step++) {
        wander(step);
        timespec nap{0, NAP_NS};
        if (step % STEPS_A_NAP == 0) nanosleep(&nap, nullptr);
    }
    do {
        for (size_t page = 0; page < pages; page++) look_at(page);
        find_payload(arguments[2], payload);
        printf("sound %" PRIu64 "\n", looks);
        fflush(stdout);
    } while (stays && !stays_to_the_end(term, arguments[2], payload));
    return 0;
}
