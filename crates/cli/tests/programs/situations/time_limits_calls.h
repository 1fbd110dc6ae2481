/* The waiting calls of time_limits.c, and the objects that they wait for, which never become ready. */
#pragma once

#include "../forked.h"

#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif
#define ALARM_SIGNAL SIGRTMIN

/* A call that waits, and its objects, which are made before its thread starts. */
struct wait {
    const char *name;
    /* Makes the call once. Returns the kernel's result, which is a negative errno on failure. */
    long (*call)(struct wait *);
    /* The result when the time limit expires. */
    long expected;
    int may_pass_in_child;
    int fd;
    int other_fd;
    /* Time at which the current call began. */
    _Atomic uint64_t begun_us;
    _Atomic uint64_t count;
    uint64_t longest_us;
};

static uint64_t limit_us = 200000;

/* Makes a system call, and checks that it does not change its argument registers. */
static long raw(long number, long a, long b, long c, long d, long e, long f) {
    long result = number, rdi = a, rsi = b, rdx = c;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    register long r12 __asm__("r12") = 0x1212121212;
    __asm__ volatile("syscall"
                     : "+a"(result), "+D"(rdi), "+S"(rsi), "+d"(rdx), "+r"(r10), "+r"(r8), "+r"(r9), "+r"(r12)
                     :
                     : "rcx", "r11", "memory");
    REQUIRE(rdi == a && rsi == b && rdx == c && r10 == d && r8 == e && r9 == f && r12 == 0x1212121212,
            "call %ld changed its argument registers", number);
    return result;
}
#define CALL6(n, a, b, c, d, e, f, ...) raw(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define CALL(...) CALL6(__VA_ARGS__, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66)

static struct timespec limit_of(void) {
    return (struct timespec){.tv_sec = (time_t)(limit_us / 1000000), .tv_nsec = (long)(limit_us % 1000000 * 1000)};
}

static struct timespec end_of(clockid_t clock) {
    struct timespec now, limit = limit_of();
    clock_gettime(clock, &now);
    now.tv_sec += limit.tv_sec + (now.tv_nsec + limit.tv_nsec) / 1000000000;
    now.tv_nsec = (now.tv_nsec + limit.tv_nsec) % 1000000000;
    return now;
}

#define LIMIT_MS ((long)(limit_us / 1000))

static long call_epoll_wait(struct wait *w) {
    struct epoll_event event;
    return CALL(SYS_epoll_wait, w->fd, &event, 1, LIMIT_MS);
}
static long call_epoll_pwait(struct wait *w) {
    struct epoll_event event;
    return CALL(SYS_epoll_pwait, w->fd, &event, 1, LIMIT_MS, 0, 8);
}
static long call_epoll_pwait2(struct wait *w) {
    struct epoll_event event;
    struct timespec limit = limit_of();
    return CALL(SYS_epoll_pwait2, w->fd, &event, 1, &limit, 0, 8);
}
static long call_sigtimedwait(struct wait *w) {
    (void)w;
    uint64_t set = 1ull << (ALARM_SIGNAL - 1);
    struct timespec limit = limit_of();
    return CALL(SYS_rt_sigtimedwait, &set, 0, &limit, 8);
}
static long call_semtimedop(struct wait *w) {
    struct sembuf down = {.sem_num = 0, .sem_op = -1, .sem_flg = 0};
    struct timespec limit = limit_of();
    return CALL(SYS_semtimedop, w->fd, &down, 1, &limit);
}
static long call_poll(struct wait *w) {
    struct pollfd one = {.fd = w->fd, .events = POLLIN};
    return CALL(SYS_poll, &one, 1, LIMIT_MS);
}
static long call_ppoll(struct wait *w) {
    struct pollfd one = {.fd = w->fd, .events = POLLIN};
    struct timespec limit = limit_of();
    return CALL(SYS_ppoll, &one, 1, &limit, 0, 8);
}
static long call_select(struct wait *w) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(w->fd, &set);
    struct timeval limit = {.tv_sec = (time_t)(limit_us / 1000000), .tv_usec = (suseconds_t)(limit_us % 1000000)};
    return CALL(SYS_select, w->fd + 1, &set, 0, 0, &limit);
}
static long call_pselect(struct wait *w) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(w->fd, &set);
    struct timespec limit = limit_of();
    return CALL(SYS_pselect6, w->fd + 1, &set, 0, 0, &limit, 0);
}
static long call_nanosleep(struct wait *w) {
    (void)w;
    struct timespec limit = limit_of();
    return CALL(SYS_nanosleep, &limit, 0);
}
static long call_clock_nanosleep(struct wait *w) {
    (void)w;
    struct timespec limit = limit_of(), left;
    return CALL(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &limit, &left);
}
static long call_futex(struct wait *w) {
    struct timespec limit = limit_of();
    return CALL(SYS_futex, &w->other_fd, FUTEX_WAIT_PRIVATE, w->other_fd, &limit, 0, 0);
}
static long call_futex_until(struct wait *w) {
    struct timespec end = end_of(CLOCK_MONOTONIC);
    return CALL(SYS_futex, &w->other_fd, FUTEX_WAIT_BITSET_PRIVATE, w->other_fd, &end, 0, FUTEX_BITSET_MATCH_ANY);
}
static long call_recv(struct wait *w) {
    char byte[64];
    return CALL(SYS_recvfrom, w->fd, byte, sizeof byte, 0, 0, 0);
}
static long call_recvmsg(struct wait *w) {
    char byte[64];
    struct iovec vector = {byte, sizeof byte};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    return CALL(SYS_recvmsg, w->fd, &message, 0);
}
static long call_recvmmsg(struct wait *w) {
    char byte[64];
    struct iovec vector = {byte, sizeof byte};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &vector, .msg_iovlen = 1}};
    return CALL(SYS_recvmmsg, w->fd, &message, 1, 0, 0);
}
static long call_read(struct wait *w) {
    char byte[64];
    return CALL(SYS_read, w->fd, byte, sizeof byte);
}
static long call_readv(struct wait *w) {
    char byte[64];
    struct iovec vector = {byte, sizeof byte};
    return CALL(SYS_readv, w->fd, &vector, 1);
}
static long call_accept(struct wait *w) { return CALL(SYS_accept, w->fd, 0, 0); }
static long call_accept4(struct wait *w) { return CALL(SYS_accept4, w->fd, 0, 0, SOCK_CLOEXEC); }
static long call_send(struct wait *w) { return CALL(SYS_sendto, w->fd, "full", 4, 0, 0, 0); }
static long call_sendmsg(struct wait *w) {
    struct iovec vector = {"full", 4};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    return CALL(SYS_sendmsg, w->fd, &message, 0);
}
static long call_sendmmsg(struct wait *w) {
    struct iovec vector = {"full", 4};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &vector, .msg_iovlen = 1}};
    return CALL(SYS_sendmmsg, w->fd, &message, 1, 0);
}
static long call_write(struct wait *w) { return CALL(SYS_write, w->fd, "full", 4); }
static long call_writev(struct wait *w) {
    struct iovec vector = {"full", 4};
    return CALL(SYS_writev, w->fd, &vector, 1);
}
static long call_connect(struct wait *w) {
    struct sockaddr_un address;
    socklen_t length = sizeof address;
    REQUIRE(getsockname(w->other_fd, (struct sockaddr *)&address, &length) == 0);
    return CALL(SYS_connect, w->fd, &address, length);
}
static long call_sendfile(struct wait *w) {
    off_t offset = 0;
    return CALL(SYS_sendfile, w->fd, w->other_fd, &offset, 4);
}
/* Calls without a time limit. Each returns only on an error. */
static long ever_epoll_wait(struct wait *w) {
    struct epoll_event event;
    return CALL(SYS_epoll_wait, w->fd, &event, 1, -1);
}
static long ever_epoll_pwait2(struct wait *w) {
    struct epoll_event event;
    return CALL(SYS_epoll_pwait2, w->fd, &event, 1, 0, 0, 8);
}
static long ever_sigwaitinfo(struct wait *w) {
    (void)w;
    uint64_t set = 1ull << (ALARM_SIGNAL - 1);
    return CALL(SYS_rt_sigtimedwait, &set, 0, 0, 8);
}
static long ever_semop(struct wait *w) {
    struct sembuf down = {.sem_num = 0, .sem_op = -1, .sem_flg = 0};
    return CALL(SYS_semop, w->fd, &down, 1);
}
static long ever_msgrcv(struct wait *w) {
    struct { long type; char text[8]; } message;
    return CALL(SYS_msgrcv, w->fd, &message, sizeof message.text, 0, 0);
}
static long ever_msgsnd(struct wait *w) {
    struct { long type; char text[8]; } message = {1, "full"};
    return CALL(SYS_msgsnd, w->fd, &message, sizeof message.text, 0);
}
static long ever_pause(struct wait *w) {
    (void)w;
    return CALL(SYS_pause);
}
static long ever_sigsuspend(struct wait *w) {
    (void)w;
    uint64_t none = 0;
    return CALL(SYS_rt_sigsuspend, &none, 8);
}
static long ever_futex(struct wait *w) {
    return CALL(SYS_futex, &w->other_fd, FUTEX_WAIT_PRIVATE, w->other_fd, 0, 0, 0);
}

static void set_limit(int fd) {
    struct timeval limit = {.tv_sec = (time_t)(limit_us / 1000000), .tv_usec = (suseconds_t)(limit_us % 1000000)};
    REQUIRE(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    REQUIRE(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0);
}

static void make_epoll(struct wait *w) { REQUIRE((w->fd = epoll_create1(EPOLL_CLOEXEC)) >= 0); }
static void make_pipe(struct wait *w) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    w->fd = ends[0], w->other_fd = ends[1];
}
static void make_pair(struct wait *w, int type) {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, type, 0, ends) == 0);
    w->fd = ends[0], w->other_fd = ends[1];
}
static void make_quiet(struct wait *w) { make_pair(w, SOCK_STREAM), set_limit(w->fd); }
static void make_quiet_datagrams(struct wait *w) { make_pair(w, SOCK_DGRAM), set_limit(w->fd); }
static void make_silent(struct wait *w) { make_pair(w, SOCK_STREAM); }
/* The call waits because the peer does not read and the buffer is full. */
static void make_full(struct wait *w) {
    make_pair(w, SOCK_STREAM);
    char much[4096] = {0};
    while (send(w->fd, much, sizeof much, MSG_DONTWAIT) > 0) {
    }
    while (send(w->fd, "x", 1, MSG_DONTWAIT) > 0) {
    }
    set_limit(w->fd);
}
static void make_listener(struct wait *w) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    REQUIRE((w->fd = socket(AF_UNIX, SOCK_STREAM, 0)) >= 0);
    REQUIRE(bind(w->fd, (struct sockaddr *)&address, sizeof(sa_family_t)) == 0 && listen(w->fd, 1) == 0);
    set_limit(w->fd);
}
/* The call waits because the listener does not accept and its backlog is full. */
static void make_waiting(struct wait *w) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t length = sizeof address;
    REQUIRE((w->other_fd = socket(AF_UNIX, SOCK_STREAM, 0)) >= 0);
    REQUIRE(bind(w->other_fd, (struct sockaddr *)&address, sizeof(sa_family_t)) == 0 && listen(w->other_fd, 0) == 0);
    REQUIRE(getsockname(w->other_fd, (struct sockaddr *)&address, &length) == 0);
    int first = socket(AF_UNIX, SOCK_STREAM, 0);
    REQUIRE(first >= 0 && connect(first, (struct sockaddr *)&address, length) == 0);
    REQUIRE((w->fd = socket(AF_UNIX, SOCK_STREAM, 0)) >= 0);
    set_limit(w->fd);
}
static void make_full_and_file(struct wait *w) {
    make_full(w);
    REQUIRE((w->other_fd = memfd_create("file", MFD_CLOEXEC)) >= 0 && write(w->other_fd, "file", 4) == 4);
}
static int semaphores = -1;
static int messages = -1;
static int full_messages = -1;
static void make_semaphore(struct wait *w) {
    if (semaphores < 0) REQUIRE((semaphores = semget(IPC_PRIVATE, 1, 0600)) >= 0);
    w->fd = semaphores;
}
static void make_messages(struct wait *w) {
    if (messages < 0) REQUIRE((messages = msgget(IPC_PRIVATE, 0600)) >= 0);
    w->fd = messages;
}

static void make_full_messages(struct wait *w) {
    struct { long type; char text[1024]; } message = {1, ""};
    if (full_messages < 0) REQUIRE((full_messages = msgget(IPC_PRIVATE, 0600)) >= 0);
    w->fd = full_messages;
    while (msgsnd(w->fd, &message, sizeof message.text, IPC_NOWAIT) == 0) continue;
    while (msgsnd(w->fd, &message, 1, IPC_NOWAIT) == 0) continue;
}

/* Makes the System V objects, which would outlive this process. A process that is not a descendant removes them after
 * this process has ended, even if it was killed. */
static void have_objects_removed(void) {
    make_semaphore(&(struct wait){0});
    make_messages(&(struct wait){0});
    make_full_messages(&(struct wait){0});
    pid_t self = getpid(), starter = fork();
    REQUIRE(starter >= 0);
    if (starter > 0) {
        REQUIRE(waitpid(starter, NULL, 0) == starter);
        return;
    }
    struct pollfd end = {.fd = syscall(SYS_pidfd_open, self, 0), .events = POLLIN};
    if (fork() != 0) _exit(0);
    for (int fd = 0; fd < 3; fd++) close(fd);
    setsid();
    if (end.fd >= 0) poll(&end, 1, -1);
    semctl(semaphores, 0, IPC_RMID);
    msgctl(messages, IPC_RMID, NULL);
    msgctl(full_messages, IPC_RMID, NULL);
    _exit(0);
}
static void make_inotify(struct wait *w) { REQUIRE((w->fd = inotify_init1(IN_CLOEXEC)) >= 0); }
static void make_nothing(struct wait *w) { w->fd = -1; }

static struct kind {
    const char *name;
    long (*call)(struct wait *);
    void (*make)(struct wait *);
    long expected;
    /* In a child, the unread data is in larger pieces, so there may be room for more, and the call may succeed. */
    int may_pass_in_child;
} kinds[] = {
    {"epoll_wait", call_epoll_wait, make_epoll, 0, 0},
    {"epoll_pwait", call_epoll_pwait, make_epoll, 0, 0},
    {"epoll_pwait2", call_epoll_pwait2, make_epoll, 0, 0},
    {"sigtimedwait", call_sigtimedwait, make_nothing, -EAGAIN, 0},
    {"semtimedop", call_semtimedop, make_semaphore, -EAGAIN, 0},
    {"poll", call_poll, make_pipe, 0, 0},
    {"ppoll", call_ppoll, make_pipe, 0, 0},
    {"select", call_select, make_pipe, 0, 0},
    {"pselect6", call_pselect, make_pipe, 0, 0},
    {"nanosleep", call_nanosleep, make_nothing, 0, 0},
    {"clock_nanosleep", call_clock_nanosleep, make_nothing, 0, 0},
    {"futex", call_futex, make_nothing, -ETIMEDOUT, 0},
    {"futex_until", call_futex_until, make_nothing, -ETIMEDOUT, 0},
    {"recv", call_recv, make_quiet, -EAGAIN, 0},
    {"recvmsg", call_recvmsg, make_quiet, -EAGAIN, 0},
    {"recv_datagram", call_recv, make_quiet_datagrams, -EAGAIN, 0},
    {"recvmmsg", call_recvmmsg, make_quiet_datagrams, -EAGAIN, 0},
    {"read", call_read, make_quiet, -EAGAIN, 0},
    {"readv", call_readv, make_quiet, -EAGAIN, 0},
    {"accept", call_accept, make_listener, -EAGAIN, 0},
    {"accept4", call_accept4, make_listener, -EAGAIN, 0},
    {"send", call_send, make_full, -EAGAIN, 1},
    {"sendmsg", call_sendmsg, make_full, -EAGAIN, 1},
    {"sendmmsg", call_sendmmsg, make_full, -EAGAIN, 1},
    {"write", call_write, make_full, -EAGAIN, 1},
    {"writev", call_writev, make_full, -EAGAIN, 1},
    {"connect", call_connect, make_waiting, -EAGAIN, 1},
    {"sendfile", call_sendfile, make_full_and_file, -EAGAIN, 1},
};

static struct kind endless[] = {
    {"epoll_wait", ever_epoll_wait, make_epoll, 0, 0},      {"epoll_pwait2", ever_epoll_pwait2, make_epoll, 0, 0},
    {"sigwaitinfo", ever_sigwaitinfo, make_nothing, 0, 0},  {"semop", ever_semop, make_semaphore, 0, 0},
    {"msgrcv", ever_msgrcv, make_messages, 0, 0},           {"pause", ever_pause, make_nothing, 0, 0},
    {"sigsuspend", ever_sigsuspend, make_nothing, 0, 0},    {"recv", call_recv, make_silent, 0, 0},
    {"inotify", call_read, make_inotify, 0, 0},             {"futex", ever_futex, make_nothing, 0, 0},
    {"msgsnd", ever_msgsnd, make_full_messages, 0, 0},
};
