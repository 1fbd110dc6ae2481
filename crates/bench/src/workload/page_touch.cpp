// A program whose children touch single pages, and print how long each touch took.
//
// As a parent it fills MIB of private memory and waits on standard input. In a child, standard input is /dev/null, so the
// read(2) returns 0, and the child reads PAYLOAD. If the file does not exist, this is the parent and its caller has gone,
// so it exits.
#include "parent.h"

#include <cinttypes>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace {

constexpr uint64_t PAGE_BYTES = 4096;
constexpr size_t COUNT_MAX = 100'000;

uint64_t word_at(uint64_t page) { return (page + 1) * 0x9e3779b97f4a7c15u; }

void pause_us(long us) {
    if (us == 0) return;
    timespec time{us / 1'000'000, us % 1'000'000 * 1000};
    nanosleep(&time, nullptr);
}

} // namespace

// PAYLOAD holds `COUNT GAP_US`. The child touches COUNT pages, each once and far from the others, and sleeps for GAP_US
// before each. It prints `touched WRONG NS NS NS …`: how many pages did not have the parent's contents, and the time of
// each touch. All its other memory is present before the first touch.
//
// Usage: page_touch MIB PAYLOAD
int main(int count, char **arguments) {
    if (count != 3) {
        fputs("usage: page_touch MIB PAYLOAD\n", stderr);
        return 2;
    }
    uint64_t pages = (strtoull(arguments[1], nullptr, 10) << 20) / PAGE_BYTES;
    void *area = mmap(nullptr, pages * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED) fail("mmap");
    madvise(area, pages * PAGE_BYTES, MADV_NOHUGEPAGE);
    auto *memory = static_cast<volatile uint64_t *>(area);
    for (uint64_t page = 0; page < pages; page++) memory[page * (PAGE_BYTES / 8)] = word_at(page);
    char payload[64];
    if (!wait_for_payload(arguments[2], payload)) return 0;
    size_t touches = 0;
    long gap_us = 0;
    if (sscanf(payload, "%zu %ld", &touches, &gap_us) != 2 || touches == 0 || touches > COUNT_MAX || touches > pages) {
        fputs("the payload is COUNT GAP_US\n", stderr);
        return 1;
    }
    // Writing to each page of this memory makes it present before the first touch.
    std::vector<int64_t> took_ns(touches, 1);
    uint64_t wrong = 0, apart = pages / touches;
    pause_us(1000);
    now_ns();
    for (size_t i = 0; i < touches; i++) {
        uint64_t page = i * apart;
        pause_us(gap_us);
        int64_t began_ns = now_ns();
        uint64_t word = memory[page * (PAGE_BYTES / 8)];
        took_ns[i] = now_ns() - began_ns;
        wrong += word != word_at(page);
    }
    printf("touched %" PRIu64, wrong);
    for (int64_t ns : took_ns) printf(" %" PRId64, ns);
    puts("");
    return 0;
}
