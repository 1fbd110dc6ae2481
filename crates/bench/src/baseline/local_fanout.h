// The results of children. The floors of a fan-out collect and print them.
#pragma once

#include "../workload/sparse.h"

struct ChildResult {
    uint64_t number, value;
    int64_t result_ns;
};

struct ChildAnswer {
    ChildResult result;
    int64_t answered_ns;
};

// The work of a child: it touches pages, and reports a value computed from them.
inline bool touch_and_report(Sparse &memory, uint64_t number, int end) {
    uint64_t value = memory.touch(number);
    ChildResult result = {number, value, now_ns()};
    return write(end, &result, sizeof result) == sizeof result;
}

inline void print_answers(int64_t began, const ChildAnswer *answers, uint64_t count) {
    printf("fanned %lld\n", (long long)(now_ns() - began));
    for (const ChildAnswer *a = answers; a < answers + count; a++)
        printf("answered %lld %lld %lld %lld\n", (long long)a->result.number, (long long)a->result.value,
               (long long)(a->result.result_ns - began), (long long)(a->answered_ns - began));
    fflush(stdout);
}
