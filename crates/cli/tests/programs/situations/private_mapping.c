/* Private mappings of objects to which the process can also write by other means. Pages that were written through the
 * mapping are private. The others show writes to the object, before and after a fork, in a parent and in a child
 * (mmap(2)).
 * usage: private_mapping memfd | deleted PATH | shared-memory PATH | anonymous | file PATH | descendant
 */
#include "../forked.h"

#include <sys/wait.h>

#define PAGES 6
#define WORDS (PAGE_BYTES / sizeof(uint64_t))
#define BYTES (PAGES * PAGE_BYTES)

static uint64_t *private;
static uint64_t *shared;
static int object;

/* Opens the object for reading and writing. Shared anonymous memory is opened through /proc/self/map_files. */
static int open_object(const char *kind, const char *path) {
    if (!strcmp(kind, "anonymous")) {
        char link[64];
        uint64_t *made = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        REQUIRE(made != MAP_FAILED);
        unsigned long start = (unsigned long)made;
        snprintf(link, sizeof link, "/proc/self/map_files/%lx-%lx", start, start + BYTES);
        return open(link, O_RDWR | O_CLOEXEC);
    }
    if (!path) return memfd_create("followed", MFD_CLOEXEC);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0);
    if (!strcmp(kind, "deleted")) REQUIRE(unlink(path) == 0);
    return fd;
}

static void set_up(const char *kind, const char *path) {
    object = open_object(kind, path);
    REQUIRE(object >= 0 && ftruncate(object, BYTES) == 0);
    private = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, object, 0);
    REQUIRE(private != MAP_FAILED);
    uint64_t words[BYTES / sizeof(uint64_t)];
    fill(words, BYTES, 100);
    REQUIRE(pwrite(object, words, BYTES, 0) == (ssize_t)BYTES);
    /* A file with a path has no shared and writable mapping. A child must open the file for writing because of the
     * descriptor alone. */
    if (strcmp(kind, "file") != 0) {
        shared = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, object, 0);
        REQUIRE(shared != MAP_FAILED);
    }
    /* Makes the first page of each half private. */
    fill(private, PAGE_BYTES, 1000);
    fill(private + 3 * WORDS, PAGE_BYTES, 2000);
    REQUIRE(mprotect(private + 3 * WORDS, 3 * PAGE_BYTES, PROT_READ) == 0);
}

/* Writes to the object, by write(2) and through a shared mapping. Pages that are not private must show the writes;
 * private pages must not. */
static void check_following(uint64_t first) {
    uint64_t page[WORDS];
    for (size_t at = 0; at < PAGES; at++) {
        fill(page, PAGE_BYTES, first + at);
        int by_mapping = shared && at % 2 == 1;
        if (by_mapping) memcpy(shared + at * WORDS, page, PAGE_BYTES);
        else REQUIRE(pwrite(object, page, PAGE_BYTES, (off_t)(at * PAGE_BYTES)) == (ssize_t)PAGE_BYTES);
    }
    for (size_t at = 1; at < PAGES; at++)
        if (at != 3) REQUIRE(holds(private + at * WORDS, PAGE_BYTES, first + at), "page %zu misses a write", at);
    REQUIRE(holds(private, PAGE_BYTES, 1000), "a private page shows a write to the object");
    REQUIRE(holds(private + 3 * WORDS, PAGE_BYTES, 2000), "a private read-only page shows a write to the object");
}

/* Requires the contents at prepare, whatever was written to the parent's object later. */
static void check_contents(void) {
    REQUIRE(holds(private, PAGE_BYTES, 1000) && holds(private + 3 * WORDS, PAGE_BYTES, 2000), "a private page is lost");
    for (size_t at = 1; at < PAGES; at++)
        if (at != 3) REQUIRE(holds(private + at * WORDS, PAGE_BYTES, 100 + at * WORDS), "page %zu has other contents", at);
}

static void check_own(void) {
    check_following(5000);
    /* Pages that are written after the fork become private too. A discarded private page shows the object again. */
    fill(private + WORDS, PAGE_BYTES, 3000);
    REQUIRE(madvise(private, PAGE_BYTES, MADV_DONTNEED) == 0);
    REQUIRE(holds(private, PAGE_BYTES, 5000), "a discarded page does not show the object");
    uint64_t page[WORDS];
    REQUIRE(pread(object, page, PAGE_BYTES, (off_t)PAGE_BYTES) == (ssize_t)PAGE_BYTES && holds(page, PAGE_BYTES, 5001));
}

/* Forks a descendant with the same mapping and its own private page in it. */
static pid_t bear(void) {
    pid_t parent = getpid(), born = fork();
    REQUIRE(born >= 0);
    if (born > 0) return born;
    end_with_parent(parent);
    char payload[PAYLOAD_BYTES_MAX];
    fill(private + 2 * WORDS, PAGE_BYTES, 4000);
    while (!find_payload(payload)) usleep(1000);
    REQUIRE(holds(private + 2 * WORDS, PAGE_BYTES, 4000), "the descendant's private page lost its contents");
    while (!holds(shared + 5 * WORDS, PAGE_BYTES, 5005)) usleep(1000);
    REQUIRE(holds(private + 5 * WORDS, PAGE_BYTES, 5005), "the descendant's mapping does not show a write to the object");
    REQUIRE(holds(private + 2 * WORDS, PAGE_BYTES, 4000) && holds(private, PAGE_BYTES, 1000));
    _exit(0);
}

int main(int count, char **arguments) {
    REQUIRE(count >= 2);
    int is_tree = !strcmp(arguments[1], "descendant");
    set_up(arguments[1], arguments[2]);
    pid_t born = is_tree ? bear() : 0;
    check_contents();
    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);
    check_contents();
    check_own();
    int status;
    if (is_tree) REQUIRE(waitpid(born, &status, 0) == born && status == 0, "the descendant ended with status %#x", status);
    finish(payload, 0);
}
