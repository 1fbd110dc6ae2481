/* Random numbers of libc, and of the kernel, which a child prints: those have the parent's state, these have none.
 */
#include "../forked.h"

#include <sys/random.h>

int main(void) {
    /* There is a state to share. */
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
