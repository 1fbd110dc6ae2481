/* A parent that appends to its own files all the time, to the last one first. In a child, each file has the length and the
 * bytes that it had at the prepare.
 * usage: result_files DIRECTORY
 */
#include "../forked.h"

#include <sys/stat.h>

#define FILES 64
#define FIRST_BYTES (64 << 10)

static char paths[FILES][256];
static int fds[FILES];
static size_t lengths[FILES];

static void append(int file, size_t bytes) {
    char text[4096];
    for (size_t i = 0; i < bytes; i++) text[i] = (char)('a' + (lengths[file] + i + (size_t)file) % 26);
    REQUIRE(write(fds[file], text, bytes) == (ssize_t)bytes);
    lengths[file] += bytes;
}

static void check_file(int file) {
    char text[4096];
    size_t at = 0;
    struct stat status;
    int fd = open(paths[file], O_RDONLY);
    REQUIRE(fd >= 0 && fstat(fds[file], &status) == 0);
    REQUIRE((size_t)status.st_size == lengths[file], "file %d has %zu bytes", file, (size_t)status.st_size);
    for (ssize_t length; (length = read(fd, text, sizeof text)) > 0; at += (size_t)length)
        for (ssize_t i = 0; i < length; i++)
            REQUIRE(text[i] == (char)('a' + (at + (size_t)i + (size_t)file) % 26), "file %d", file);
    REQUIRE(at == lengths[file]);
    close(fd);
}

int main(int count, char **arguments) {
    REQUIRE(count == 2, "usage: result_files DIRECTORY");
    char payload[PAYLOAD_BYTES_MAX];
    for (int i = 0; i < FILES; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/result-%d", arguments[1], i);
        fds[i] = open(paths[i], O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
        REQUIRE(fds[i] >= 0, "%s", paths[i]);
        while (lengths[i] < FIRST_BYTES) append(i, 4096);
    }
    ready(9);
    for (int next = FILES - 1; !find_payload(payload); next = (next + FILES - 1) % FILES) {
        append(next, 100);
        say("tick %llu", (unsigned long long)monotonic_us());
        usleep(2000);
    }
    for (int i = 0; i < FILES; i++) check_file(i);
    finish(payload, 9);
}
