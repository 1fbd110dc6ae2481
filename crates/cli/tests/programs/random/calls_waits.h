/* A thread in each call that can wait forever, or for an hour. */
#pragma once

#include "calls_process.h"

#include <poll.h>
#include <sys/select.h>

#ifndef SYS_futex_wait
#define SYS_futex_wait 455
#endif
#define WAIT_STACK_BYTES (64 * 1024)
#define WAITS_AT_ONCE 3

/* The objects of the waits. No wait ends: no process writes, connects, unlocks or exits. */
struct wait {
    int empty, full, socket, listener, epoll, queue, semaphores, locked;
    pid_t child;
    uint32_t word;
    char bytes[4096];
};

typedef long wait_function(struct wait *);

static const struct timespec hour = {.tv_sec = 3600};

static long in_read(struct wait *w) { return read(w->empty, w->bytes, 1); }
static long in_readv(struct wait *w) { return readv(w->empty, &(struct iovec){w->bytes, 5}, 1); }
static long in_write(struct wait *w) { return write(w->full, w->bytes, sizeof w->bytes); }
static long in_writev(struct wait *w) { return writev(w->full, &(struct iovec){w->bytes, 5}, 1); }
static long in_splice(struct wait *w) { return splice(w->empty, NULL, w->full, NULL, 5, 0); }
static long in_tee(struct wait *w) { return tee(w->empty, w->full, 5, 0); }
static long in_recvfrom(struct wait *w) { return recv(w->socket, w->bytes, 5, 0); }
static long in_recvmsg(struct wait *w) { return recvmsg(w->socket, &(struct msghdr){.msg_iov = &(struct iovec){w->bytes, 5}, .msg_iovlen = 1}, 0); }
static long in_recvmmsg(struct wait *w) {
    return recvmmsg(w->socket, &(struct mmsghdr){.msg_hdr = {.msg_iov = &(struct iovec){w->bytes, 5}, .msg_iovlen = 1}}, 1, 0, NULL);
}
static long in_accept(struct wait *w) { return syscall(SYS_accept, w->listener, NULL, NULL); }
static long in_accept4(struct wait *w) { return accept4(w->listener, NULL, NULL, SOCK_CLOEXEC); }
static long in_poll(struct wait *w) { return syscall(SYS_poll, &(struct pollfd){.fd = w->empty, .events = POLLIN}, 1, 3600000); }
static long in_ppoll(struct wait *w) { return ppoll(&(struct pollfd){.fd = w->empty, .events = POLLIN}, 1, &hour, NULL); }
static long in_select(struct wait *w) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(w->empty, &set);
    return syscall(SYS_select, w->empty + 1, &set, NULL, NULL, &(struct timeval){.tv_sec = 3600});
}
static long in_pselect6(struct wait *w) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(w->socket, &set);
    return pselect(w->socket + 1, &set, NULL, NULL, &hour, NULL);
}
static long in_epoll_wait(struct wait *w) { return syscall(SYS_epoll_wait, w->epoll, w->bytes, 1, -1); }
static long in_epoll_pwait(struct wait *w) { return syscall(SYS_epoll_pwait, w->epoll, w->bytes, 1, 3600000, NULL, 8); }
static long in_epoll_pwait2(struct wait *w) { return syscall(SYS_epoll_pwait2, w->epoll, w->bytes, 1, &hour, NULL, 8); }
static long in_futex(struct wait *w) { return syscall(SYS_futex, &w->word, FUTEX_WAIT_PRIVATE, 0, one_in(2) ? NULL : &hour, NULL, 0); }
static long in_futex_waitv(struct wait *w) {
    struct futex_waitv one = {.uaddr = (uintptr_t)&w->word, .flags = FUTEX_32 | FUTEX_PRIVATE_FLAG};
    return syscall(SYS_futex_waitv, &one, 1, 0, NULL, CLOCK_MONOTONIC);
}
/* Kernels before 6.7 lack futex_wait(2). */
static long in_futex_wait(struct wait *w) {
    long outcome = syscall(SYS_futex_wait, &w->word, 0, 1, 2 | FUTEX_PRIVATE_FLAG, NULL, CLOCK_MONOTONIC);
    return outcome < 0 && errno == ENOSYS ? pause() : outcome;
}
static long in_nanosleep(struct wait *w) { return (void)w, syscall(SYS_nanosleep, &hour, NULL); }
static long in_clock_nanosleep(struct wait *w) {
    struct timespec until;
    (void)w, clock_gettime(CLOCK_MONOTONIC, &until), until.tv_sec += 3600;
    return syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}
static long in_pause(struct wait *w) { return (void)w, pause(); }
static long in_rt_sigsuspend(struct wait *w) {
    sigset_t all;
    (void)w, sigfillset(&all);
    return sigsuspend(&all);
}
static long in_rt_sigtimedwait(struct wait *w) {
    sigset_t one;
    (void)w, sigemptyset(&one), sigaddset(&one, 55);
    return sigtimedwait(&one, NULL, &hour);
}
static long in_wait4(struct wait *w) { return wait4(w->child, NULL, 0, NULL); }
static long in_waitid(struct wait *w) { return waitid(P_PID, (id_t)w->child, NULL, WEXITED); }
static long in_flock(struct wait *w) { return flock(w->locked, LOCK_EX); }
static long in_fcntl(struct wait *w) { return fcntl(w->locked, F_OFD_SETLKW, &(struct flock){.l_type = F_WRLCK}); }
static long in_msgrcv(struct wait *w) { return msgrcv(w->queue, w->bytes, 5, 77, 0); }
static long in_semop(struct wait *w) { return syscall(SYS_semop, w->semaphores, &(struct sembuf){0, -1, 0}, 1); }
static long in_semtimedop(struct wait *w) { return semtimedop(w->semaphores, &(struct sembuf){0, -1, 0}, 1, &hour); }
static long in_eventfd(struct wait *w) { return read(eventfd(0, 0), w->bytes, 8); }
static long in_signalfd(struct wait *w) {
    sigset_t one;
    sigemptyset(&one), sigaddset(&one, 56);
    return read(signalfd(-1, &one, 0), w->bytes, 128);
}
static long in_inotify(struct wait *w) { return read(inotify_init1(0), w->bytes, 256); }
static long in_timerfd(struct wait *w) { return read(timerfd_create(CLOCK_BOOTTIME, 0), w->bytes, 8); }

static struct wait *new_wait(void) {
    struct wait *w = map_anonymous(sizeof *w);
    int ends[2], pair[2];
    REQUIRE(pipe(ends) == 0);
    w->empty = ends[0];
    REQUIRE(pipe2(ends, O_NONBLOCK) == 0);
    w->full = ends[1];
    while (write(w->full, w->bytes, sizeof w->bytes) > 0) continue;
    REQUIRE(fcntl(w->full, F_SETFL, 0) == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    w->socket = pair[0], w->listener = socket(AF_INET, SOCK_STREAM, 0), w->epoll = epoll_create1(0);
    REQUIRE(listen(w->listener, 1) == 0 && epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->empty, &(struct epoll_event){.events = EPOLLIN}) == 0);
    return w;
}

static void *wait_for_ever(void *argument) {
    wait_function **function = argument;
    struct wait *w = *(struct wait **)(function + 1);
    ((atomic_int *)(function + 2))[0] = gettid();
    long outcome = (*function)(w);
    REQUIRE(0, "a wait ended with %ld", outcome);
}

/* Starts a thread that waits in a call. Returns when the thread sleeps. */
static void begin_wait_in(wait_function *function, struct wait *w) {
    struct {
        wait_function *function;
        struct wait *wait;
        atomic_int tid;
    } *start = map_anonymous(PAGE_BYTES);
    pthread_attr_t attributes;
    pthread_t thread;
    start->function = function, start->wait = w;
    pthread_attr_init(&attributes), pthread_attr_setstacksize(&attributes, WAIT_STACK_BYTES);
    REQUIRE(pthread_create(&thread, &attributes, wait_for_ever, start) == 0);
    struct worker worker = {.tid = 0};
    while (atomic_load(&worker.tid) == 0) atomic_store(&worker.tid, atomic_load(&start->tid)), usleep(100);
    while (!sleeps(&worker)) usleep(100);
}

static void wait_for_streams(void) {
    static wait_function *const functions[] = {in_read, in_readv, in_write, in_writev, in_splice, in_tee, in_eventfd, in_signalfd, in_inotify, in_timerfd};
    begin_wait_in(ONE_OF(functions), new_wait());
}

static void wait_for_sockets(void) {
    static wait_function *const functions[] = {in_recvfrom, in_recvmsg, in_recvmmsg, in_accept, in_accept4};
    begin_wait_in(ONE_OF(functions), new_wait());
}

static void wait_for_readiness(void) {
    static wait_function *const functions[] = {in_poll, in_ppoll, in_select, in_pselect6, in_epoll_wait, in_epoll_pwait, in_epoll_pwait2};
    for (int i = 0; i < WAITS_AT_ONCE; i++) begin_wait_in(ONE_OF(functions), new_wait());
}

static void wait_for_words_and_time(void) {
    static wait_function *const functions[] = {in_futex, in_futex_waitv, in_futex_wait, in_nanosleep, in_clock_nanosleep, in_pause, in_rt_sigsuspend, in_rt_sigtimedwait};
    for (int i = 0; i < WAITS_AT_ONCE; i++) begin_wait_in(ONE_OF(functions), new_wait());
}

static void wait_for_child(void) {
    struct wait *w = new_wait();
    REQUIRE((w->child = fork()) >= 0);
    if (w->child == 0) stand_as_child();
    await_rest(w->child, AT_PAUSE);
    begin_wait_in(one_in(2) ? in_wait4 : in_waitid, w);
}

static void wait_for_lock(void) {
    const char *path = keep_path();
    struct wait *w = new_wait();
    int holder = open(path, O_CREAT | O_RDWR, 0600), is_flock = one_in(2);
    w->locked = open(path, O_RDWR);
    REQUIRE((is_flock ? flock(holder, LOCK_EX) : fcntl(holder, F_OFD_SETLK, &(struct flock){.l_type = F_WRLCK})) == 0);
    begin_wait_in(is_flock ? in_flock : in_fcntl, w);
}

static void wait_for_objects(void) {
    static wait_function *const functions[] = {in_msgrcv, in_semop, in_semtimedop};
    struct wait *w = new_wait();
    w->queue = msgget(IPC_PRIVATE, IPC_CREAT | 0600), w->semaphores = semget(IPC_PRIVATE, 1, IPC_CREAT | 0600);
    REQUIRE(semctl(w->semaphores, 0, SETVAL, 0) == 0);
    begin_wait_in(ONE_OF(functions), w);
}
