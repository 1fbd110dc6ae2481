// The memory of parents whose children touch four pages of it, and the value that a child computes from them. The value
// is unique to each child. `expected_value` in `sparse.rs` computes it too.
#pragma once

#include "parent.h"

#include <sys/mman.h>

constexpr size_t PAGE_WORDS = 4096 / sizeof(uint64_t);
constexpr uint64_t TOUCHED = 4;

struct Sparse {
    uint64_t *words;
    uint64_t pages;

    explicit Sparse(uint64_t mib, int advice = MADV_NORMAL) : pages(mib << 8) {
        void *at = mmap(nullptr, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) fail("memory");
        // The kernel may not support the advice.
        madvise(at, mib << 20, advice);
        words = static_cast<uint64_t *>(at);
        for (uint64_t i = 0; i < pages * PAGE_WORDS; i++) words[i] = mixed((i + 1) * 0x9e3779b97f4a7c15u);
    }

    // Reads and writes one word in each of the four pages. Returns the child's value.
    uint64_t touch(uint64_t number) {
        uint64_t value = number;
        for (uint64_t i = 0; i < TOUCHED; i++) {
            uint64_t &word = words[mixed(number * TOUCHED + i + 1) % pages * PAGE_WORDS + i];
            value = mixed(value ^ word);
            word = value;
        }
        return value;
    }
};
