/* A file that is open by path, at an offset. Parent and child append a line each, one after the other. The contents of
 * the file then show whether parent and child share it.
 * usage: appending FILE
 */
#include "../forked.h"

int main(int count, char **arguments) {
    REQUIRE(count == 2, "usage: appending FILE");
    int fd = open(arguments[1], O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    REQUIRE(fd >= 0, "%s", arguments[1]);
    REQUIRE(dprintf(fd, "parent\n") == 7);

    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);

    off_t offset = lseek(fd, 0, SEEK_CUR);
    REQUIRE(offset == 7, "the offset is %ld", (long)offset);
    REQUIRE(dprintf(fd, "child %s\n", payload) > 0);
    finish(payload, 0);
}
