/* Files that were deleted while open: contents, offset, mode, flags, times and a hole; and a private mapping with written
 * pages and a shared mapping. One is open for its location only. Another file has the name that the kernel writes for the
 * removed one. */
#include "resource.h"

#define HOLE_BYTES (1 << 20)

static const int open_flags[] = {O_RDWR | O_DIRECT, O_RDWR | O_NOATIME, O_WRONLY | O_DSYNC, O_RDONLY | O_SYNC, O_PATH};

#define OPENED (sizeof open_flags / sizeof open_flags[0])

static int file, mapped, opened[OPENED], shown_flags[OPENED];
static const struct timespec times[2] = {{1000000007, 123456789}, {900000001, 987654321}};
static char *private_view, *shared_view;

static void set_up(void) {
    for (size_t i = 0; i < OPENED; i++) {
        int made = open(path_of("flags"), O_CREAT | O_WRONLY | O_EXCL, 0600);
        REQUIRE(write(made, "text", 4) == 4 && close(made) == 0);
        REQUIRE((opened[i] = open(path_of("flags"), open_flags[i])) >= 0 && unlink(path_of("flags")) == 0, "flags %o", open_flags[i]);
        shown_flags[i] = fcntl(opened[i], F_GETFL);
    }
    file = open(path_of("gone"), O_CREAT | O_RDWR | O_CLOEXEC, 0640), mapped = open(path_of("mapped"), O_CREAT | O_RDWR, 0600);
    REQUIRE(write(file, "content", 7) == 7 && pwrite(file, "end", 3, HOLE_BYTES) == 3 && lseek(file, 3, SEEK_SET) == 3);
    REQUIRE(ftruncate(mapped, 2 * PAGE_BYTES) == 0 && pwrite(mapped, "file", 4, 0) == 4);
    private_view = (char *)mmap(NULL, 2 * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, mapped, 0);
    shared_view = (char *)mmap(NULL, 2 * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, mapped, 0);
    REQUIRE(private_view != MAP_FAILED && shared_view != MAP_FAILED);
    strcpy(private_view + PAGE_BYTES, "private");
    strcpy(shared_view + PAGE_BYTES, "shared");
    REQUIRE(futimens(file, times) == 0 && futimens(mapped, times) == 0);
    REQUIRE(unlink(path_of("gone")) == 0 && unlink(path_of("mapped")) == 0);
    int other = open(path_of("mapped (deleted)"), O_CREAT | O_RDWR, 0600);
    REQUIRE(other >= 0 && close(other) == 0);
}

static int is_at(const struct timespec *found, int which) {
    return found->tv_sec == times[which].tv_sec && found->tv_nsec == times[which].tv_nsec;
}

static void check(void) {
    struct stat status;
    char text[16] = {0};
    for (size_t i = 0; i < OPENED; i++) REQUIRE(fcntl(opened[i], F_GETFL) == shown_flags[i], "%o instead of %o", fcntl(opened[i], F_GETFL), shown_flags[i]);
    REQUIRE(read(opened[OPENED - 1], text, 1) == -1 && errno == EBADF, "an O_PATH descriptor can be read");
    REQUIRE(fstat(opened[OPENED - 1], &status) == 0 && status.st_size == 4 && status.st_nlink == 0);
    REQUIRE(fstat(file, &status) == 0 && status.st_nlink == 0 && status.st_size == HOLE_BYTES + 3 && S_ISREG(status.st_mode));
    REQUIRE((status.st_mode & 0777) == 0640 && status.st_uid == getuid(), "mode %o", status.st_mode);
    REQUIRE(is_at(&status.st_atim, 0) && is_at(&status.st_mtim, 1), "times %ld and %ld", status.st_atime, status.st_mtime);
    REQUIRE(fstat(mapped, &status) == 0 && is_at(&status.st_atim, 0) && is_at(&status.st_mtim, 1), "times %ld and %ld", status.st_atime, status.st_mtime);
    REQUIRE(read(file, text, 4) == 4 && memcmp(text, "tent", 4) == 0, "%s", text);
    REQUIRE(pread(file, text, 8, HOLE_BYTES - 4) == 7 && memcmp(text, "\0\0\0\0end", 7) == 0);
    REQUIRE(access(path_of("gone"), F_OK) == -1 && fcntl(file, F_GETFD) == FD_CLOEXEC);
    REQUIRE(strcmp(private_view, "file") == 0 && strcmp(private_view + PAGE_BYTES, "private") == 0);
    REQUIRE(strcmp(shared_view + PAGE_BYTES, "shared") == 0 && pwrite(mapped, "anew", 4, PAGE_BYTES) == 4);
    REQUIRE(memcmp(shared_view + PAGE_BYTES, "anewed", 6) == 0, "the mapping does not follow the file: %s", shared_view + PAGE_BYTES);
}
