/* Files that exist at prepare, and are changed or removed before a child opens them. The child finds their contents at
 * the time of open(2).
 * usage: files_changed_later CHANGED REMOVED
 */
#include "../forked.h"

static void write_text(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    REQUIRE(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0, "%s", path);
}

int main(int count, char **arguments) {
    REQUIRE(count == 3, "usage: files_changed_later CHANGED REMOVED");
    char payload[PAYLOAD_BYTES_MAX], text[PAYLOAD_BYTES_MAX] = {0};
    for (int at = 1; at < count; at++) write_text(arguments[at], "before");
    ready(0);
    await_fork(payload);

    int changed = open(arguments[1], O_RDONLY | O_CLOEXEC);
    REQUIRE(changed >= 0 && read(changed, text, sizeof text - 1) > 0 && strcmp(text, "after") == 0, "it holds %s", text);
    REQUIRE(open(arguments[2], O_RDONLY | O_CLOEXEC) < 0 && errno == ENOENT, "%s", arguments[2]);
    /* After a child has written to a file, it has its own copy. Later changes of the node's file do not affect it. */
    write_text(arguments[2], payload);
    finish(payload, 0);
}
