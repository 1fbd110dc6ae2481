/* Deleted directories: an open one, one opened with O_PATH, and the current directory. */
#include "resource.h"

static int open_one, place;

static void set_up(void) {
    REQUIRE(mkdir(path_of("open"), 0700) == 0 && mkdir(path_of("place"), 0700) == 0 && mkdir(path_of("current"), 0700) == 0);
    REQUIRE(chmod(path_of("open"), 01751) == 0 && chown(path_of("open"), 12, 34) == 0 && chmod(path_of("current"), 0710) == 0);
    open_one = open(path_of("open"), O_RDONLY | O_DIRECTORY | O_CLOEXEC), place = open(path_of("place"), O_PATH);
    REQUIRE(open_one >= 0 && place >= 0 && chdir(path_of("current")) == 0);
    REQUIRE(rmdir(path_of("open")) == 0 && rmdir(path_of("place")) == 0 && rmdir(path_of("current")) == 0);
}

static struct stat status_of(int fd, const char *name) {
    struct stat status;
    REQUIRE(fstatat(fd, name, &status, AT_EMPTY_PATH) == 0 && S_ISDIR(status.st_mode) && status.st_nlink == 0, "%s", name);
    return status;
}

static void check(void) {
    char path[PATH_BYTES_MAX], entries[1024];
    struct stat status = status_of(open_one, "");
    REQUIRE((status.st_mode & 07777) == 01751 && status.st_uid == 12 && status.st_gid == 34, "mode %o", status.st_mode);
    REQUIRE(fcntl(open_one, F_GETFD) == FD_CLOEXEC && fcntl(place, F_GETFD) == 0 && fcntl(place, F_GETFL) & O_PATH);
    REQUIRE(openat(open_one, "new", O_CREAT | O_WRONLY, 0600) == -1 && errno == ENOENT);
    REQUIRE(syscall(SYS_getdents64, open_one, entries, sizeof entries) == -1 && errno == ENOENT, "it can be listed");
    status_of(place, "");
    REQUIRE((status_of(AT_FDCWD, ".").st_mode & 07777) == 0710, "another current directory");
    REQUIRE(getcwd(path, sizeof path) == NULL && errno == ENOENT && mkdir("below", 0700) == -1 && errno == ENOENT);
    REQUIRE(access("/run/farfork/deleted-0", F_OK) == -1 && chdir("/") == 0);
}
