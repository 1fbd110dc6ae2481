/* Files that exist at prepare, open and mapped in every way. A child finds the contents that they had at prepare,
 * whatever happened to their paths. With the payload 900, the child must find the changed contents of the file `read`.
 * usage: kept_files DIRECTORY [KIND]
 */
#include "../forked.h"

#include <sys/stat.h>

#define FILE_BYTES (3 * PAGE_BYTES + 512)
#define TAKES_CHANGES 900

static const char *const kinds[] = {"read", "both", "shared", "private", "copied", "written", "log", "plain_log"};
enum { READ, BOTH, SHARED, PRIVATE, COPIED, WRITTEN, LOG, PLAIN_LOG, KINDS };

static uint64_t words[FILE_BYTES / sizeof(uint64_t)];
static int fds[KINDS], second;
static uint64_t *maps[KINDS];

static void make(const char *directory, int kind) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, kinds[kind]);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
    fill(words, FILE_BYTES, (uint64_t)kind * 1000);
    REQUIRE(fd >= 0 && write(fd, words, FILE_BYTES) == (ssize_t)FILE_BYTES && close(fd) == 0, "%s", path);
    const int flags[KINDS] = {O_RDONLY, O_RDWR, O_RDONLY, O_RDONLY, O_RDONLY, O_RDWR, O_WRONLY | O_APPEND, O_WRONLY};
    fds[kind] = open(path, flags[kind] | O_CLOEXEC);
    REQUIRE(fds[kind] >= 0, "%s", path);
    if (kind == READ) second = open(path, O_RDONLY | O_CLOEXEC);
    if (kind == PLAIN_LOG) REQUIRE(lseek(fds[kind], 0, SEEK_END) == FILE_BYTES);
    if (kind < SHARED || kind > WRITTEN) return;
    int protection = kind < COPIED ? PROT_READ : PROT_READ | PROT_WRITE;
    int how = kind == SHARED || kind == WRITTEN ? MAP_SHARED : MAP_PRIVATE;
    maps[kind] = mmap(NULL, FILE_BYTES, protection, how, fds[kind], 0);
    REQUIRE(maps[kind] != MAP_FAILED, "%s", path);
    close(fds[kind]);
}

static void check(int kind, int is_changed) {
    uint64_t first = (uint64_t)kind * 1000 + (is_changed ? 7 : 0);
    struct stat found;
    switch (kind) {
    case READ:
    case BOTH:
        REQUIRE(pread(fds[kind], words, FILE_BYTES, 0) == (ssize_t)FILE_BYTES, "%s", kinds[kind]);
        REQUIRE(holds(words, FILE_BYTES, first), "%s", kinds[kind]);
        REQUIRE(fstat(fds[kind], &found) == 0 && (found.st_mode & 0777) == 0640);
        if (kind == READ) REQUIRE(pread(second, words, 8, 0) == 8 && words[0] == word_of(first));
        if (kind == READ) REQUIRE(write(fds[kind], "x", 1) < 0 && errno == EBADF);
        if (kind == BOTH) REQUIRE(pwrite(fds[kind], "x", 1, 0) == 1);
        break;
    case COPIED:
        REQUIRE(maps[kind][0] == 4711);
        maps[kind][0] = word_of(first);
        /* Fall through. */
    case SHARED:
    case PRIVATE:
    case WRITTEN:
        REQUIRE(holds(maps[kind], FILE_BYTES, first), "%s", kinds[kind]);
        if (kind == WRITTEN) maps[kind][1] = 4711;
        break;
    default:
        REQUIRE(fstat(fds[kind], &found) == 0 && found.st_size == FILE_BYTES, "%s has %ld bytes", kinds[kind],
                (long)found.st_size);
        REQUIRE(write(fds[kind], "line\n", 5) == 5 && fstat(fds[kind], &found) == 0, "%s", kinds[kind]);
        REQUIRE(found.st_size == FILE_BYTES + 5, "%s has %ld bytes", kinds[kind], (long)found.st_size);
    }
}

int main(int count, char **arguments) {
    REQUIRE(count == 2 || count == 3, "usage: kept_files DIRECTORY [KIND]");
    for (int kind = 0; kind < KINDS; kind++)
        if (count == 2 || strcmp(arguments[2], kinds[kind]) == 0) make(arguments[1], kind);
    if (maps[COPIED]) maps[COPIED][0] = 4711;
    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);
    for (int kind = 0; kind < KINDS; kind++)
        if (count == 2 || strcmp(arguments[2], kinds[kind]) == 0)
            check(kind, kind == READ && atoi(payload) == TAKES_CHANGES);
    finish(payload, 0);
}
