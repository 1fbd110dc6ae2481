/* Files that are open by path: offsets, modes, duplicates that share an offset, close-on-exec, directories in the
 * middle of a listing, and the devices that every program has.
 */
#include "../forked.h"

#include <dirent.h>
#include <sys/stat.h>

#define READ_ONLY_FD 20
#define DUPLICATE_FD 21
#define DIRECTORY_FD 22
#define ZERO_FD 23
#define FULL_FD 24
#define NULL_FD 25
#define RANDOM_FD 26
#define OFFSET 12
#define PAYLOAD_FD 1000
#define DESCRIPTORS_MAX 4096

static void open_at(int number, const char *path, int flags) {
    int fd = open(path, flags);
    REQUIRE(fd >= 0, "%s", path);
    REQUIRE(dup3(fd, number, flags & O_CLOEXEC) == number);
    close(fd);
}

/* Returns the name of the next entry of a listing. */
static void next_entry(int fd, char name[64]) {
    union {
        struct dirent64 entry;
        char bytes[64]; /* enough for one entry or two */
    } listing;
    REQUIRE(getdents64(fd, &listing, sizeof listing.bytes) > 0);
    snprintf(name, 64, "%.40s", listing.entry.d_name);
}

static void check_devices(void) {
    char bytes[64];
    memset(bytes, 1, sizeof bytes);
    REQUIRE(read(ZERO_FD, bytes, sizeof bytes) == sizeof bytes && is_zero(bytes, sizeof bytes));
    REQUIRE(write(FULL_FD, bytes, 1) == -1 && errno == ENOSPC);
    REQUIRE(read(NULL_FD, bytes, 1) == 0 && write(NULL_FD, bytes, 1) == 1);
    REQUIRE(read(RANDOM_FD, bytes, sizeof bytes) == sizeof bytes && !is_zero(bytes, sizeof bytes));
}

static void check_regular(const char *expected) {
    char text[8] = {0};
    REQUIRE(lseek(READ_ONLY_FD, 0, SEEK_CUR) == OFFSET, "offset %ld", (long)lseek(READ_ONLY_FD, 0, SEEK_CUR));
    REQUIRE(read(READ_ONLY_FD, text, 4) == 4 && memcmp(text, expected, 4) == 0);
    REQUIRE(lseek(DUPLICATE_FD, 0, SEEK_CUR) == OFFSET + 4, "the duplicate does not share its offset");
    REQUIRE((fcntl(READ_ONLY_FD, F_GETFL) & O_ACCMODE) == O_RDONLY && write(READ_ONLY_FD, text, 1) == -1);
    REQUIRE(fcntl(READ_ONLY_FD, F_GETFD) == 0 && fcntl(DUPLICATE_FD, F_GETFD) == FD_CLOEXEC);
}

static int count_open(void) {
    int count = 0;
    for (int fd = 0; fd < DESCRIPTORS_MAX; fd++) count += fd != PAYLOAD_FD && fcntl(fd, F_GETFD) != -1;
    return count;
}

/* In a child, the payload is an open descriptor too. Without farfork, the program has none. */
static void check_payload(const char *payload) {
    char text[PAYLOAD_BYTES_MAX] = {0};
    if (fcntl(PAYLOAD_FD, F_GETFD) == -1) return;
    REQUIRE(read(PAYLOAD_FD, text, sizeof text - 1) > 0 && strncmp(text, payload, strlen(payload)) == 0, "%s", text);
}

int main(void) {
    char expected[4];
    char path[256] = {0}, first[64], second[64], found[64];
    REQUIRE(readlink("/proc/self/exe", path, sizeof path - 1) > 0);
    open_at(READ_ONLY_FD, path, O_RDONLY | O_NOATIME);
    REQUIRE(pread(READ_ONLY_FD, expected, 4, OFFSET) == 4 && lseek(READ_ONLY_FD, OFFSET, SEEK_SET) == OFFSET);
    REQUIRE(dup3(READ_ONLY_FD, DUPLICATE_FD, O_CLOEXEC) == DUPLICATE_FD);
    open_at(DIRECTORY_FD, "/usr", O_RDONLY | O_DIRECTORY);
    next_entry(DIRECTORY_FD, first);
    off_t position = lseek(DIRECTORY_FD, 0, SEEK_CUR);
    next_entry(DIRECTORY_FD, second);
    lseek(DIRECTORY_FD, position, SEEK_SET);
    open_at(ZERO_FD, "/dev/zero", O_RDONLY);
    open_at(FULL_FD, "/dev/full", O_WRONLY);
    open_at(NULL_FD, "/dev/null", O_RDWR | O_CLOEXEC);
    open_at(RANDOM_FD, "/dev/urandom", O_RDONLY | O_NONBLOCK);
    int open_count = count_open();

    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);

    REQUIRE(count_open() == open_count, "%d descriptors became %d", open_count, count_open());
    check_payload(payload);
    check_regular(expected);
    REQUIRE(lseek(DIRECTORY_FD, 0, SEEK_CUR) == position);
    next_entry(DIRECTORY_FD, found);
    REQUIRE(strcmp(found, second) == 0 && strcmp(found, first) != 0, "the next entry of the listing is %s", found);
    check_devices();
    finish(payload, 0);
}
