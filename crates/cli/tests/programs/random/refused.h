/* Resources that are not carried, and similar ones that are carried. check and prepare must agree on each. */
#pragma once

#include "random.h"

#include <linux/aio_abi.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/timerfd.h>

#define REFUSED_PAGES 3

/* Makes an epoll whose watched descriptor number is closed. Usually the file of this number is still open under another
 * number. If not, the kernel has removed the watch. */
static void make_lost_target(void) {
    int ends[2], epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    REQUIRE(epoll >= 0 && pipe(ends) == 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event) == 0);
    int other = one_in(4) ? -1 : dup(ends[0]);
    REQUIRE(close(ends[0]) == 0);
    /* Reuse the number for another file. */
    if (other >= 0 && one_in(2)) REQUIRE(dup2(ends[1], ends[0]) == ends[0]);
}

/* Makes a watch of a file without a path, or of a renamed file, which is found by its new name. */
static void make_lost_watch(void) {
    const char *path = new_path();
    char renamed[PATH_BYTES_MAX + 8];
    int file = open(path, O_CREAT | O_RDWR, 0600), inotify = inotify_init1(0);
    REQUIRE(file >= 0 && inotify >= 0 && inotify_add_watch(inotify, path, IN_MODIFY) > 0);
    snprintf(renamed, sizeof renamed, "%s.renamed", path);
    REQUIRE(one_in(3) ? rename(path, renamed) == 0 : unlink(path) == 0);
}

static void make_lease(void) {
    int file = open(new_path(), O_CREAT | O_RDWR, 0600);
    REQUIRE(file >= 0 && fcntl(file, F_SETLEASE, F_WRLCK) == 0);
    /* The same open file under a second number. */
    if (one_in(2)) REQUIRE(dup(file) >= 0);
}

static void make_cancelled_timer(void) {
    struct itimerspec past = {{0, 0}, {1, 0}};
    int timer = timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK);
    REQUIRE(timer >= 0 && timerfd_settime(timer, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, &past, NULL) == 0);
}

/* Makes a file whose readiness signal is sent to the parent, or to the process itself. */
static void make_foreign_owner(void) {
    int ends[2], who = one_in(3) ? getpid() : getppid();
    REQUIRE(pipe(ends) == 0 && fcntl(ends[0], F_SETOWN, who) == 0 && fcntl(ends[0], F_SETSIG, SIGURG) == 0);
    REQUIRE(fcntl(ends[0], F_SETFL, O_ASYNC) == 0);
}

/* Makes a System V segment of which a part is unmapped. */
static void make_part_of_segment(void) {
    int id = shmget(IPC_PRIVATE, REFUSED_PAGES * PAGE_BYTES, IPC_CREAT | 0600);
    char *at = (char *)shmat(id, NULL, 0);
    REQUIRE(id >= 0 && at != (char *)-1 && shmctl(id, IPC_RMID, NULL) == 0);
    REQUIRE(munmap(at + below(REFUSED_PAGES) * PAGE_BYTES, PAGE_BYTES) == 0);
}

/* Maps a file whose name is not UTF-8. */
static void make_strange_name(void) {
    char path[PATH_BYTES_MAX + 8];
    snprintf(path, sizeof path, "%s\xff", new_path());
    int file = open(path, O_CREAT | O_RDWR, 0600), flags = one_in(2) ? MAP_SHARED : MAP_PRIVATE;
    REQUIRE(file >= 0 && ftruncate(file, PAGE_BYTES) == 0);
    REQUIRE(mmap(NULL, PAGE_BYTES, PROT_READ, flags, file, 0) != MAP_FAILED && close(file) == 0);
}

/* Makes the ring of asynchronous I/O, with or without MADV_DONTFORK. */
static void make_ring(void) {
    aio_context_t context = 0;
    REQUIRE(syscall(SYS_io_setup, 1, &context) == 0);
    if (one_in(3)) return;
    size_t bytes = PAGE_BYTES;
    REQUIRE(madvise((void *)context, bytes, MADV_DONTFORK) == 0);
}

static void make_pidfd_of_parent(void) { REQUIRE(syscall(SYS_pidfd_open, getppid(), 0) >= 0); }
