/* A parent that holds memory. A child with the payload `more` allocates further memory, MiB by MiB, until it is killed.
 * usage: memory_hog MIB
 */
#include "../forked.h"

#include <sys/mman.h>

#define MIB_MORE_MAX 4096

static char *take(size_t bytes) {
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    memset(memory, 1, bytes);
    return memory;
}

int main(int count, char **arguments) {
    REQUIRE(count == 2, "usage: memory_hog MIB");
    char payload[PAYLOAD_BYTES_MAX];
    char *held = take((size_t)atoi(arguments[1]) << 20);
    ready(0);
    await_fork(payload);

    for (int mib = 0; strncmp(payload, "more", 4) == 0 && mib < MIB_MORE_MAX; mib++) take(1 << 20);
    REQUIRE(held[0] == 1);
    finish(payload, 0);
}
