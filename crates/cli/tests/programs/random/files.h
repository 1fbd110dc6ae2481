/* Files that are opened by path: offsets, flags, duplicates, locks. In a child, the contents are in the files of its
 * node. */
#pragma once

#include "streams.h"

#include <sys/file.h>
#include <sys/syscall.h>

static void lock_something(int fd) {
    struct flock part = {.l_type = (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR && one_in(2) ? F_WRLCK : F_RDLCK,
                         .l_whence = SEEK_SET,
                         .l_start = (off_t)below(1000),
                         .l_len = (off_t)below(500)};
    switch (below(4)) {
    case 0: REQUIRE(flock(fd, one_in(2) ? LOCK_EX : LOCK_SH) == 0); break;
    case 1: REQUIRE(fcntl(fd, F_SETLK, &part) == 0); break;
    case 2: REQUIRE(fcntl(fd, F_OFD_SETLK, &part) == 0); break;
    default: break;
    }
}

static void make_file(void) {
    static const int flags[] = {O_RDONLY, O_RDWR, O_RDWR | O_APPEND, O_RDWR | O_NONBLOCK, O_RDONLY | O_NOATIME, O_RDWR | O_DSYNC};
    int fd = new_file(1 + below(5), ONE_OF(flags) | (one_in(2) ? O_CLOEXEC : 0));
    lseek(fd, (off_t)below(30000), SEEK_SET);
    if (one_in(2)) lock_something(fd);
}

static void make_deleted_file(void) {
    char path[PATH_BYTES_MAX];
    snprintf(path, sizeof path, "%s", new_path());
    int fd = open(path, O_CREAT | O_EXCL | O_RDWR | (one_in(2) ? O_APPEND : 0), 0640);
    REQUIRE(fd >= 0);
    if (one_in(2)) put(fd, 1 + below(20000));
    if (one_in(2)) REQUIRE(ftruncate(fd, (off_t)below(100000)) == 0);
    lseek(fd, (off_t)below(30000), SEEK_SET);
    if (one_in(3)) REQUIRE(open(path, O_RDONLY) >= 0);
    REQUIRE(unlink(path) == 0);
}

static void make_directory(void) {
    char path[PATH_BYTES_MAX];
    snprintf(path, sizeof path, "%s", new_path());
    REQUIRE(mkdir(path, 0700) == 0 && open(path, O_RDONLY | O_DIRECTORY) >= 0);
    if (one_in(3)) REQUIRE(chdir(path) == 0);
}

static void make_place(void) {
    char path[PATH_BYTES_MAX];
    snprintf(path, sizeof path, "%s", new_path());
    REQUIRE(one_in(2) ? symlink("/nowhere", path) == 0 : mkdir(path, 0700) == 0);
    REQUIRE(open(path, O_PATH | O_NOFOLLOW | (one_in(2) ? O_CLOEXEC : 0)) >= 0);
}

static void make_device(void) {
    static const char *const paths[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"};
    REQUIRE(open(ONE_OF(paths), one_in(2) ? O_RDWR : O_RDONLY | O_CLOEXEC) >= 0);
}

static void make_proc_file(void) {
    static const char *const paths[] = {"/proc/self/status", "/proc/meminfo", "/proc/self/maps", "/proc/self/fd"};
    REQUIRE(open(ONE_OF(paths), O_RDONLY) >= 0);
}

static void make_pidfd(void) { note_watchable((int)syscall(SYS_pidfd_open, getpid(), one_in(2) ? O_NONBLOCK : 0)); }

/* Duplicates a random descriptor. */
static void make_duplicate(void) {
    int fds[256], count = 0;
    for (int fd = 3; fd < 1024 && count < 256; fd++)
        if (fcntl(fd, F_GETFD) >= 0) fds[count++] = fd;
    if (count == 0) return;
    int to = one_in(2) ? 3 + (int)below(1000) : 3 + (int)below(60);
    if (fcntl(to, F_GETFD) < 0) REQUIRE(dup3(fds[below((uint64_t)count)], to, one_in(2) ? O_CLOEXEC : 0) == to);
}
