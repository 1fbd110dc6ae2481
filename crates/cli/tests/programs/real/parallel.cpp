// A parallel region of OpenMP with many loops. Each loop needs the result of the one before, so threads meet at
// barriers all the time. The program repeats the same computation until SIGUSR2.
//
// usage: parallel
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <omp.h>

static constexpr int threads_count = 3;
static constexpr int steps_count = 1500;
static constexpr std::int64_t words_count = 1 << 17;

static volatile std::sig_atomic_t is_told = 0;

static std::uint64_t mixed(std::uint64_t word) {
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
    return word ^ (word >> 27);
}

int main() {
    std::vector<std::uint64_t> words(words_count), next(words_count);
    std::uint64_t sum = 0, first_sum = 0;
    bool is_over = false;
    std::signal(SIGUSR2, [](int) { is_told = 1; });
#pragma omp parallel num_threads(threads_count)
    for (int round = 0; !is_over; round++) {
#pragma omp for
        for (std::int64_t i = 0; i < words_count; i++) words[i] = mixed(i + 1);
#pragma omp single
        sum = 0;
        for (int step = 0; step < steps_count; step++) {
#pragma omp for reduction(+ : sum)
            for (std::int64_t i = 0; i < words_count; i++) {
                next[i] = mixed(words[i] + words[(i + step) % words_count]);
                sum += next[i];
            }
#pragma omp single
            {
                std::swap(words, next);
                if (round == 0 && step == steps_count / 3) std::puts("half"), std::fflush(stdout);
            }
        }
#pragma omp single
        {
            if (round == 0) first_sum = sum;
            is_over = is_told || sum != first_sum;
        }
    }
    std::printf("result %llu of %d\n.\n", static_cast<unsigned long long>(sum), threads_count);
}
