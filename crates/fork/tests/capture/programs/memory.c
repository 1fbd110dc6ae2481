// A parent with memory. Its arguments are the size in mebibytes and the number of sleeping threads. For each line on its
// standard input, it forks and reports how long fork() took, in nanoseconds.
#include "parent.h"

#include <time.h>

static void *sleeper(void *unused) {
    for (;;) pause();
    return unused;
}

int main(int count, char **words) {
    begin();
    size_t bytes = strtoul(words[1], NULL, 10) << 20;
    char *data = CHECK(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (size_t at = 0; at < bytes; at += PAGE) data[at] = 1;
    for (int thread = 0; count > 2 && thread < atoi(words[2]); thread++) {
        pthread_t id;
        start(&id, "sleeper", sleeper);
    }
    ready();
    char line[16];
    while (fgets(line, sizeof line, stdin)) {
        struct timespec before, after;
        clock_gettime(CLOCK_MONOTONIC, &before);
        pid_t child = CHECK(fork());
        if (!child) _exit(0);
        clock_gettime(CLOCK_MONOTONIC, &after);
        CHECK(waitpid(child, NULL, 0));
        tell("fork", (after.tv_sec - before.tv_sec) * 1000000000L + after.tv_nsec - before.tv_nsec);
    }
}
