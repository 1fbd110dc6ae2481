// What floors of a fan-out say of their children.
#pragma once

#include "../workload/sparse.h"

struct Said {
    uint64_t number, value;
    int64_t result_ns;
};

struct Answer {
    Said said;
    int64_t answered_ns;
};

// What a child does: it touches, and says what it made of that.
inline bool touch_and_say(Sparse &memory, uint64_t number, int end) {
    uint64_t value = memory.touch(number);
    Said said = {number, value, now_ns()};
    return write(end, &said, sizeof said) == sizeof said;
}

inline void tell(int64_t began, const Answer *answers, uint64_t count) {
    printf("fanned %lld\n", (long long)(now_ns() - began));
    for (const Answer *a = answers; a < answers + count; a++)
        printf("answered %lld %lld %lld %lld\n", (long long)a->said.number, (long long)a->said.value,
               (long long)(a->said.result_ns - began), (long long)(a->answered_ns - began));
    fflush(stdout);
}
