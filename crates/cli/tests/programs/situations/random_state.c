/* A child prints random numbers of libc, which follow from the parent's state, and of getrandom(2), which do not. */
#include "../forked.h"

#include <sys/random.h>

int main(void) {
    /* All children inherit this state. */
    srand(1), srandom(2), srand48(3);
    rand(), random(), drand48();
    uint64_t kernels;

    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);

    REQUIRE(getrandom(&kernels, sizeof kernels, 0) == sizeof kernels);
    say("libc %d %ld %ld", rand(), random(), lrand48());
    say("kernel %llu", (unsigned long long)kernels);
    srand((unsigned)strtoul(payload, NULL, 10));
    say("seeded %d", rand());
    finish(payload, 0);
}
