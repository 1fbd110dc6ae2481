/* A temporary file whose name contains the process id. All children have the same id, but each creates its own file.
 * usage: temporary_file DIRECTORY
 */
#include "../forked.h"

int main(int count, char **arguments) {
    REQUIRE(count == 2, "usage: temporary_file DIRECTORY");
    char payload[PAYLOAD_BYTES_MAX], path[512], text[PAYLOAD_BYTES_MAX] = {0};
    snprintf(path, sizeof path, "%s/temporary-%d", arguments[1], getpid());
    ready(0);
    await_fork(payload);

    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0, "%s", path);
    REQUIRE(write(fd, payload, strlen(payload)) == (ssize_t)strlen(payload));
    /* Waits until the other children have created their files. */
    struct timespec second = {.tv_sec = 1};
    nanosleep(&second, NULL);
    REQUIRE(pread(fd, text, sizeof text - 1, 0) > 0 && strcmp(text, payload) == 0, "the file contains %s", text);
    finish(payload, 0);
}
