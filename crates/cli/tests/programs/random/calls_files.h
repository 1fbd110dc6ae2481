/* State of files by system calls that process.c does not make: old and new calls with the same effect, names, modes,
 * times, file offsets, watches. */
#pragma once

#include "kinds.h"

#include <dirent.h>
#include <linux/openat2.h>
#include <sys/fanotify.h>
#include <sys/sendfile.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <utime.h>

#define OWNERS_END 4000

static char *keep_path(void) { return strdup(new_path()); }

static void use_old_calls(void) {
    const char *path = keep_path();
    int ends[2], file = (int)syscall(SYS_creat, path, 0600);
    struct epoll_event event = {.events = EPOLLIN};
    uint64_t mask = 0xf0000000;
    REQUIRE(file >= 0 && write(file, path, 5) == 5 && syscall(SYS_open, path, O_RDWR | O_APPEND) >= 0);
    REQUIRE(syscall(SYS_pipe, ends) == 0 && syscall(SYS_dup, ends[0]) >= 0 && syscall(SYS_dup2, ends[1], 200 + (int)below(50)) >= 0);
    int epoll = (int)syscall(SYS_epoll_create, 1);
    REQUIRE(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event) == 0);
    event.events |= EPOLLONESHOT;
    REQUIRE(epoll_ctl(epoll, EPOLL_CTL_MOD, ends[0], &event) == 0);
    REQUIRE(syscall(SYS_eventfd, (unsigned)below(99)) >= 0 && syscall(SYS_signalfd, -1, &mask, 8) >= 0);
    int inotify = (int)syscall(SYS_inotify_init);
    REQUIRE(inotify >= 0 && inotify_add_watch(inotify, directory, IN_DELETE) > 0);
}

static void open_by_new_calls(void) {
    struct open_how how = {.flags = O_RDWR | O_CREAT, .mode = 0640, .resolve = RESOLVE_NO_MAGICLINKS};
    struct {
        struct file_handle head;
        char bytes[MAX_HANDLE_SZ];
    } handle = {.head.handle_bytes = MAX_HANDLE_SZ};
    const char *path = keep_path();
    int mount, file = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how), folder = open(directory, O_RDONLY | O_DIRECTORY);
    REQUIRE(file >= 0 && folder >= 0);
    if (name_to_handle_at(AT_FDCWD, path, &handle.head, &mount, 0) == 0) REQUIRE(open_by_handle_at(folder, &handle.head, O_RDONLY) >= 0);
    int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    REQUIRE(self >= 0 && syscall(SYS_pidfd_getfd, self, file, 0) >= 0);
    REQUIRE(dup3(file, 300 + (int)below(50), O_CLOEXEC) >= 0);
    REQUIRE(syscall(SYS_close_range, file, folder, CLOSE_RANGE_CLOEXEC) == 0);
}

/* Renames open files, so that their names differ from the names by which they were opened. */
static void rename_open_files(void) {
    const char *first = keep_path(), *second = keep_path(), *third = keep_path(), *link_path = keep_path(), *folder = keep_path();
    int file = open(first, O_CREAT | O_RDWR, 0600);
    REQUIRE(file >= 0 && syscall(SYS_rename, first, second) == 0 && syscall(SYS_renameat, AT_FDCWD, second, AT_FDCWD, third) == 0);
    REQUIRE(syscall(SYS_link, third, first) == 0 && linkat(AT_FDCWD, third, AT_FDCWD, second, 0) == 0 && syscall(SYS_unlink, first) == 0);
    REQUIRE(syscall(SYS_symlink, third, link_path) == 0 && open(link_path, O_PATH | O_NOFOLLOW) >= 0);
    REQUIRE(symlinkat(third, AT_FDCWD, first) == 0 && open(first, O_RDONLY) >= 0);
    REQUIRE(syscall(SYS_mkdir, folder, 0700) == 0 && open(folder, O_RDONLY) >= 0);
    folder = keep_path();
    REQUIRE(mkdirat(AT_FDCWD, folder, 0750) == 0 && open(folder, O_PATH) >= 0);
    REQUIRE(syscall(SYS_renameat2, AT_FDCWD, folder, AT_FDCWD, keep_path(), 0) == 0);
}

static void delete_open_files(void) {
    const char *pipe_path = keep_path(), *folder = keep_path(), *device = keep_path();
    REQUIRE(syscall(SYS_mknod, pipe_path, S_IFIFO | 0600, 0) == 0 && open(pipe_path, O_RDWR) >= 0 && unlinkat(AT_FDCWD, pipe_path, 0) == 0);
    REQUIRE(mkdir(folder, 0700) == 0 && open(folder, O_RDONLY) >= 0 && syscall(SYS_rmdir, folder) == 0);
    REQUIRE(mknodat(AT_FDCWD, device, S_IFREG | 0600, 0) == 0 && open(device, O_RDWR) >= 0);
}

static int new_open_file(int is_deleted) {
    const char *path = keep_path();
    int file = open(path, O_CREAT | O_RDWR, 0600);
    REQUIRE(file >= 0);
    put(file, 1 + below(9000));
    if (is_deleted) REQUIRE(unlink(path) == 0);
    return file;
}

static void change_modes(void) {
    const char *path = keep_path();
    int file = new_open_file(1), kept = open(path, O_CREAT | O_RDWR, 0600), memory = memfd_create("mode", 0);
    uid_t owner = (uid_t)below(OWNERS_END), group = (gid_t)below(OWNERS_END);
    REQUIRE(kept >= 0 && memory >= 0);
    REQUIRE(syscall(SYS_chmod, path, below(01000)) == 0 && fchmod(file, (mode_t)below(010000)) == 0);
    REQUIRE(syscall(SYS_fchmodat, AT_FDCWD, path, below(01000)) == 0 && fchmod(memory, (mode_t)below(01000)) == 0);
    REQUIRE(syscall(SYS_chown, path, owner, group) == 0 && syscall(SYS_lchown, path, group, owner) == 0);
    REQUIRE(fchown(file, owner, group) == 0 && fchown(memory, group, owner) == 0 && fchownat(AT_FDCWD, path, group, owner, 0) == 0);
}

static void change_times(void) {
    struct timespec times[2] = {{(time_t)below(1 << 30), (long)below(1000000000)}, {(time_t)below(1 << 30), (long)below(1000000000)}};
    struct timeval old[2] = {{times[0].tv_sec, 1}, {times[1].tv_sec, 2}};
    struct utimbuf older = {times[0].tv_sec, times[1].tv_sec};
    const char *path = keep_path();
    int file = new_open_file(1), memory = memfd_create("times", 0), kept = open(path, O_CREAT | O_RDONLY, 0600);
    REQUIRE(kept >= 0 && futimens(file, times) == 0 && futimens(memory, times) == 0);
    REQUIRE(syscall(SYS_utime, path, &older) == 0 && syscall(SYS_utimes, path, old) == 0 && syscall(SYS_futimesat, AT_FDCWD, path, old) == 0);
}

static void change_sizes(void) {
    const char *path = keep_path();
    int file = new_open_file(1), memory = memfd_create("size", 0), kept = open(path, O_CREAT | O_RDWR, 0600);
    off_t from = 0;
    REQUIRE(kept >= 0 && fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)below(4096), 4096) == 0);
    REQUIRE(fallocate(memory, 0, 0, (off_t)(1 + below(100000))) == 0 && syscall(SYS_truncate, path, below(100000)) == 0);
    REQUIRE(sendfile(memory, file, &from, 1000) >= 0);
    loff_t in = 0;
    (void)!copy_file_range(file, &in, kept, NULL, 500, 0);
    REQUIRE(posix_fadvise(kept, 0, 0, ONE_OF(((int[]){POSIX_FADV_RANDOM, POSIX_FADV_SEQUENTIAL}))) == 0 && readahead(kept, 0, 4096) == 0);
}

/* Attributes belong to the file, not to the process. The attributes of a file without a name are lost with the file. */
static void set_attributes(void) {
    const char *path = keep_path();
    int file = new_open_file(one_in(2)), kept = open(path, O_CREAT | O_RDWR, 0600);
    REQUIRE(kept >= 0 && setxattr(path, "user.one", "1", 1, 0) == 0 && lsetxattr(path, "user.two", "22", 2, 0) == 0);
    REQUIRE(fsetxattr(file, "user.three", "333", 3, 0) == 0 && fsetxattr(kept, "user.four", "4", 1, 0) == 0);
    REQUIRE(fsetxattr(kept, "user.five", "5", 1, 0) == 0 && fremovexattr(kept, "user.five") == 0);
    REQUIRE(removexattr(path, "user.one") == 0 && lremovexattr(path, "user.two") == 0);
}

static void move_in_files(void) {
    char bytes[4096];
    struct iovec parts[2] = {{bytes, 100 + below(400)}, {bytes + 1000, 1 + below(300)}};
    int file = new_open_file(one_in(2)), folder = open("/etc", O_RDONLY | O_DIRECTORY), other = open("/usr/bin", O_RDONLY | O_DIRECTORY);
    REQUIRE(lseek(file, 0, SEEK_SET) == 0 && readv(file, parts, 2) >= 0 && writev(file, parts, 2) >= 0);
    REQUIRE(pread(file, bytes, 10, 3) >= 0 && pwrite(file, bytes, 10, 30) == 10 && preadv(file, parts, 1, 0) >= 0 && pwritev(file, parts, 1, 9) > 0);
    REQUIRE(preadv2(file, parts, 1, -1, 0) >= 0 && pwritev2(file, parts, 1, -1, RWF_APPEND) > 0);
    REQUIRE(syscall(SYS_getdents64, folder, bytes, 512) > 0 && syscall(SYS_getdents, other, bytes, 512) > 0);
}

static void change_directory(void) {
    const char *path = keep_path();
    int folder = open("/usr", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    REQUIRE(mkdir(path, 0700) == 0 && chdir(path) == 0);
    if (one_in(2)) REQUIRE(fchdir(folder) == 0);
    umask((mode_t)below(01000));
}

static void change_root(void) { REQUIRE(chroot("/usr") == 0 && (one_in(2) || chdir("/") == 0)); }

static void set_flags_by_ioctl(void) {
    int ends[2], on = 1;
    REQUIRE(pipe(ends) == 0 && ioctl(ends[0], FIONBIO, &on) == 0 && ioctl(ends[1], FIOCLEX) == 0);
    REQUIRE(fcntl(ends[0], F_SETOWN, getpid()) == 0 && ioctl(ends[0], FIOASYNC, &on) == 0);
}

static void move_pipe_data(void) {
    int first[2], second[2], third[2];
    char bytes[3000];
    struct iovec part = {bytes, 1 + below(sizeof bytes)};
    REQUIRE(pipe(first) == 0 && pipe(second) == 0 && pipe(third) == 0);
    fill_bytes(bytes, sizeof bytes);
    REQUIRE(vmsplice(first[1], &part, 1, 0) > 0 && tee(first[0], second[1], 1000, 0) > 0 && splice(second[0], NULL, third[1], NULL, 10 + below(40), 0) > 0);
}

static void remove_a_watch(void) {
    int inotify = inotify_init1(IN_NONBLOCK), watch = inotify_add_watch(inotify, directory, IN_CREATE);
    char bytes[256];
    REQUIRE(inotify_rm_watch(inotify, watch) == 0 && read(inotify, bytes, sizeof bytes) > 0 && inotify_add_watch(inotify, "/etc", IN_ATTRIB) > 0);
}

static void lease_for_reading(void) {
    const char *path = keep_path();
    REQUIRE(close(open(path, O_CREAT | O_RDWR, 0600)) == 0);
    int file = open(path, O_RDONLY);
    REQUIRE(fcntl(file, F_SETLEASE, F_RDLCK) == 0 && fcntl(file, F_SETSIG, 40) == 0);
}

static void watch_a_file_system(void) {
    int group = fanotify_init(FAN_CLASS_NOTIF | FAN_NONBLOCK, O_RDONLY);
    REQUIRE(group >= 0 && fanotify_mark(group, FAN_MARK_ADD, FAN_OPEN, AT_FDCWD, directory) == 0);
}
