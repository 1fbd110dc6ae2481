// A parallel region of OpenMP with many loops in it, each of which needs what the one before has left: threads meet at
// barriers all the time.
//
// usage: parallel
#include <cstdint>
#include <cstdio>
#include <vector>

#include <omp.h>

static constexpr int threads_count = 3;
static constexpr int steps_count = 3000;
static constexpr std::int64_t words_count = 1 << 17;

static std::uint64_t mixed(std::uint64_t word) {
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
    return word ^ (word >> 27);
}

int main() {
    std::vector<std::uint64_t> words(words_count), next(words_count);
    std::uint64_t sum = 0;
    for (std::int64_t i = 0; i < words_count; i++) words[i] = mixed(i + 1);
#pragma omp parallel num_threads(threads_count)
    for (int step = 0; step < steps_count; step++) {
#pragma omp for reduction(+ : sum)
        for (std::int64_t i = 0; i < words_count; i++) {
            next[i] = mixed(words[i] + words[(i + step) % words_count]);
            sum += next[i];
        }
#pragma omp single
        {
            std::swap(words, next);
            if (step == steps_count / 3) std::puts("half"), std::fflush(stdout);
        }
    }
    std::printf("result %llu of %d\n.\n", static_cast<unsigned long long>(sum), threads_count);
}
