/* What a program asks of fork(2) with madvise(2): memory that a child sees as zeroes, and memory that it does not have.
 * (Run without a fork, this program finds itself wrong, as it should.)
 */
#include "../forked.h"

#define BYTES (64 * PAGE_BYTES)

/* mincore(2) says ENOMEM where nothing is mapped. */
static int is_mapped(void *at) {
    unsigned char residency;
    return mincore(at, PAGE_BYTES, &residency) == 0;
}

int main(void) {
    uint64_t *wiped = (uint64_t *)map_anonymous(BYTES), *left_out = (uint64_t *)map_anonymous(BYTES);
    fill(wiped, BYTES, 300);
    fill(left_out, BYTES, 400);
    REQUIRE(madvise(wiped, BYTES, MADV_WIPEONFORK) == 0 && madvise(left_out, BYTES, MADV_DONTFORK) == 0);

    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);

    REQUIRE(is_zero(wiped, BYTES), "MADV_WIPEONFORK was not honoured");
    REQUIRE(!is_mapped(left_out), "MADV_DONTFORK was not honoured");
    fill(wiped, BYTES, 500);
    REQUIRE(holds(wiped, BYTES, 500));
    finish(payload, 0);
}
