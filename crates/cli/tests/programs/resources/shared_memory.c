/* Shared memory without a path: anonymous memory that is mapped twice and inherited by processes that the child forks,
 * and memfds with their offsets, seals and odd sizes. A child's writes do not reach its parent.
 */
#include "../forked.h"

#include <sys/wait.h>

#define BYTES (16 * PAGE_BYTES)
#define ODD_BYTES (BYTES + 123)

static uint64_t *map_shared(int fd, size_t bytes, off_t offset) {
    int flags = fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, offset);
    REQUIRE(at != MAP_FAILED);
    return (uint64_t *)at;
}

/* Checks that writes through one mapping are visible in the other mapping and in the file, and in the other
 * direction. */
static void check_views(int fd, uint64_t *whole, uint64_t *half) {
    const size_t words = BYTES / sizeof *whole;
    half[0] = 11;
    REQUIRE(whole[words / 2] == 11, "two mappings of one memfd differ");
    uint64_t found = 12;
    REQUIRE(pwrite(fd, &found, sizeof found, 0) == sizeof found && whole[0] == 12, "the mapping does not show the memfd");
    REQUIRE(pread(fd, &found, sizeof found, BYTES / 2) == sizeof found && found == 11);
}

/* Checks that the child shares the memory with processes that it forks. */
static void check_inheritance(uint64_t *shared) {
    pid_t pid = fork();
    if (pid == 0) {
        shared[5] = 55;
        _exit(0);
    }
    REQUIRE(waitpid(pid, NULL, 0) == pid && shared[5] == 55, "shared memory became private");
}

int main(void) {
    uint64_t *shared = map_shared(-1, BYTES, 0);
    fill(shared, BYTES, 10);
    int file = memfd_create("views", MFD_CLOEXEC);
    REQUIRE(ftruncate(file, BYTES) == 0);
    uint64_t *whole = map_shared(file, BYTES, 0), *half = map_shared(file, BYTES / 2, BYTES / 2);
    fill(whole, BYTES, 20);
    int odd = memfd_create("odd", MFD_ALLOW_SEALING);
    REQUIRE(ftruncate(odd, ODD_BYTES) == 0 && pwrite(odd, "end", 3, ODD_BYTES - 3) == 3);
    REQUIRE(lseek(odd, 77, SEEK_SET) == 77 && fcntl(odd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    int unmapped = memfd_create("unmapped", 0);
    REQUIRE(write(unmapped, "text", 4) == 4);

    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);

    char text[4] = {0};
    REQUIRE(holds(shared, BYTES, 10) && holds(whole, BYTES, 20));
    REQUIRE(memcmp(half, (char *)whole + BYTES / 2, BYTES / 2) == 0);
    check_inheritance(shared);
    check_views(file, whole, half);
    REQUIRE(lseek(odd, 0, SEEK_CUR) == 77 && lseek(odd, 0, SEEK_END) == ODD_BYTES);
    REQUIRE(pread(odd, text, 4, ODD_BYTES - 3) == 3 && memcmp(text, "end", 3) == 0);
    REQUIRE(fcntl(odd, F_GET_SEALS) == (F_SEAL_SHRINK | F_SEAL_GROW) && ftruncate(odd, 1) == -1);
    REQUIRE(lseek(unmapped, 0, SEEK_CUR) == 4 && pread(unmapped, text, 4, 0) == 4 && memcmp(text, "text", 4) == 0);
    finish(payload, 0);
}
