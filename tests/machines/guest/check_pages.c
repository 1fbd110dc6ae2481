// The parent of the tests. It fills memory with a pattern, prints `ready PID`, and waits. A child, which has the payload
// /run/farfork/payload, compares and rewrites each page, and exits with 0 if every byte was right.
//
// usage: check_pages MIB [MICROSECONDS]
// MICROSECONDS is a wait before each page.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PAGE_WORDS (4096 / sizeof(uint64_t))

static __thread long thread_local_value = 4711;

static uint64_t pattern(size_t word) { return word * 2654435761U ^ 0x5a5a; }

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    size_t words = ((size_t)atol(argv[1]) << 20) / sizeof(uint64_t);
    unsigned wait_us = argc > 2 ? (unsigned)atoi(argv[2]) : 0;
    volatile uint64_t *memory = malloc(words * sizeof(uint64_t));
    if (memory == NULL) return 2;
    for (size_t word = 0; word < words; word++) memory[word] = pattern(word);
    volatile double root = sqrt(2.0);
    printf("ready %d\n", getpid());
    fflush(stdout);
    while (access("/run/farfork/payload", F_OK) != 0) usleep(10000);

    char host[64];
    gethostname(host, sizeof host);
    size_t wrong = 0, pages = 0;
    for (size_t word = 0; word < words; word++) {
        if (word % PAGE_WORDS == 0) {
            pages++;
            if (wait_us > 0) usleep(wait_us);
        }
        if (memory[word] != pattern(word)) wrong++;
        memory[word] = word;
    }
    printf("on %s: %zu pages, %zu wrong words, thread-local %ld, root %.4f\n", host, pages, wrong, thread_local_value, root);
    return wrong != 0 || thread_local_value != 4711;
}
