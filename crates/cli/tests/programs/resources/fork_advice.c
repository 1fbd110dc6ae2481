/* Advice for fork(2) by madvise(2): memory that a child sees as zeroes, and memory that no copy and no core has. Memory
 * with MADV_DONTFORK alone is in a copy of the whole process, but not in a process that it forks.
 *
 * Without farfork this program fails, as it should.
 */
#include "../forked.h"

#include <sys/wait.h>

#define BYTES (64 * PAGE_BYTES)

/* mincore(2) fails with ENOMEM if nothing is mapped. */
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

    REQUIRE(is_zero(wiped, BYTES), "MADV_WIPEONFORK was not honoured");
    REQUIRE(holds(own, BYTES, 350), "memory with MADV_DONTFORK was not carried");
    REQUIRE(!is_mapped(left_out), "MADV_DONTFORK with MADV_DONTDUMP was not honoured");
    pid_t forked = fork();
    if (forked == 0) _exit(is_mapped(own));
    int status;
    REQUIRE(waitpid(forked, &status, 0) == forked && status == 0, "MADV_DONTFORK was forgotten");
    fill(wiped, BYTES, 500);
    REQUIRE(holds(wiped, BYTES, 500));
    finish(payload, 0);
}
