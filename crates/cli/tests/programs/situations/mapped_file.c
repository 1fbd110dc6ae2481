/* A file that is mapped and not read yet. A child reads the data that its parent would have read, even if its node has
 * another file at that path.
 * usage: mapped_file FILE
 */
#include "../forked.h"

#define BYTES (16 * PAGE_BYTES)

int main(int count, char **arguments) {
    REQUIRE(count == 2, "usage: mapped_file FILE");
    uint64_t *words = (uint64_t *)malloc(BYTES);
    fill(words, BYTES, 900);
    int fd = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    REQUIRE(fd >= 0 && write(fd, words, BYTES) == (ssize_t)BYTES);
    free(words);
    const uint64_t *file = (const uint64_t *)mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, fd, 0);
    REQUIRE(file != MAP_FAILED);
    close(fd);

    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);

    REQUIRE(holds(file, BYTES, 900), "the child has another version of the file");
    finish(payload, 0);
}
