/* Advice for fork(2) by madvise(2). With MADV_WIPEONFORK, memory is zero in a child. With MADV_DONTFORK and
 * MADV_DONTDUMP, a child does not have the memory. With MADV_DONTFORK alone, a child of farfork has the memory, but a
 * process that the child forks does not.
 *
 * Without farfork, this program fails.
 */
#include "../forked.h"

#include <sys/wait.h>

#define BYTES (64 * PAGE_BYTES)

/* Returns whether memory is mapped: otherwise mincore(2) fails with ENOMEM. */
static int is_mapped(void *at) {
    unsigned char residency;
    return mincore(at, PAGE_BYTES, &residency) == 0;
}

int main(void) {
    uint64_t *wiped = (uint64_t *)map_anonymous(BYTES), *own = (uint64_t *)map_anonymous(BYTES);
    uint64_t *left_out = (uint64_t *)map_anonymous(BYTES);
    fill(wiped, BYTES, 300);
    fill(own, BYTES, 350);
    fill(left_out, BYTES, 400);
    REQUIRE(madvise(wiped, BYTES, MADV_WIPEONFORK) == 0 && madvise(own, BYTES, MADV_DONTFORK) == 0);
    REQUIRE(madvise(left_out, BYTES, MADV_DONTFORK) == 0 && madvise(left_out, BYTES, MADV_DONTDUMP) == 0);

    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);

    REQUIRE(is_zero(wiped, BYTES), "MADV_WIPEONFORK had no effect");
    REQUIRE(holds(own, BYTES, 350), "memory with MADV_DONTFORK is not in the child");
    REQUIRE(!is_mapped(left_out), "MADV_DONTFORK with MADV_DONTDUMP had no effect");
    pid_t forked = fork();
    if (forked == 0) _exit(is_mapped(own));
    int status;
    REQUIRE(waitpid(forked, &status, 0) == forked && status == 0, "the child's memory has lost MADV_DONTFORK");
    fill(wiped, BYTES, 500);
    REQUIRE(holds(wiped, BYTES, 500));
    finish(payload, 0);
}
