/* A private mapping of a memfd, of which one page was written and one was not. In the process the second shows what is written to the memfd later; a
 * child keeps what was shown at the prepare, and its memfd is as it was, and its own.
 * usage: private_mapping
 */
#include "../forked.h"

int main(void) {
    int fd = memfd_create("followed", MFD_CLOEXEC);
    REQUIRE(fd >= 0 && ftruncate(fd, 2 * PAGE_BYTES) == 0);
    uint64_t *shared = mmap(NULL, 2 * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    uint64_t *private = mmap(NULL, 2 * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    REQUIRE(shared != MAP_FAILED && private != MAP_FAILED);
    uint64_t *clean = private + PAGE_BYTES / sizeof *private;
    fill(shared, 2 * PAGE_BYTES, 100);
    private[0] = 1;
    shared[PAGE_BYTES / sizeof *shared] = 2;
    REQUIRE(clean[0] == 2, "the kernel shows no private mapping what was written");
    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);
    REQUIRE(private[0] == 1 && clean[0] == 2 && shared[PAGE_BYTES / sizeof *shared] == 2 && shared[0] == word_of(100));
    uint64_t written = 3;
    REQUIRE(pwrite(fd, &written, sizeof written, PAGE_BYTES) == sizeof written);
    REQUIRE(shared[PAGE_BYTES / sizeof *shared] == 3, "the memfd is not what is mapped");
    REQUIRE(clean[0] == 2 && private[0] == 1, "it follows: `farfork check` need not tell");
    finish(payload, 0);
}
