/* A parent with a thread in each kind of wait that a stop interrupts (signal(7)): calls with a time limit, made again and
 * again, and calls without any, which never return. No handler is installed, so that EINTR is wrong; so is a wait that
 * is shorter than its limit, or longer than it by more than the machine's own delays; so are argument registers that have
 * changed when the call ends. In a child, a wait that the fork interrupted ends with the time that was left.
 * usage: time_limits [LIMIT_MS [SLACK_MS]]
 */
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
#define TOO_EARLY_US 1500
#define THREADS_MAX 64
/* So many threads of others take part in the end of a wait that was interrupted, and each may be late. */
#define DELAYS 8
/* So many threads measure how late the machine is. */
#define SLEEPERS 16
/* A child's first steps wait for pages, too. */
#define CHILD_SLACKS 10
/* A count that stands for all rounds. */
#define ENOUGH (1ull << 40)

/* What a wait needs, made before its thread starts. */
struct wait {
    const char *name;
    /* Makes the call once; gives what it returned, as the kernel does (a negative errno). */
    long (*call)(struct wait *);
    /* What the call gives when its time is over. */
    long expected;
    int may_pass_in_child;
    int fd;
    int other_fd;
    /* When the call that is under way was begun. */
    _Atomic uint64_t begun_us;
    _Atomic uint64_t count;
    uint64_t longest_us;
};

static uint64_t limit_us = 200000;
static uint64_t slack_us = 10000;
/* By how much the machine itself is late: the worst of threads that only sleep until a time, their pauses included. */
static _Atomic uint64_t lateness_us;
/* How often that was measured. */
static _Atomic uint64_t measures;
/* When the main thread has ticked last, and when it found that it is a child. */
static _Atomic uint64_t ticked_us;
static _Atomic uint64_t child_since_us;
static _Atomic int is_over;

/* A system call whose argument registers must be as they were when it ends. */
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
/* Calls without a limit: each returns only if something is wrong. */
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
/* Nobody reads at the other end, and there is no more room. */
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
static int semaphores = -1;
static int messages = -1;
static void make_semaphore(struct wait *w) {
    if (semaphores < 0) REQUIRE((semaphores = semget(IPC_PRIVATE, 1, 0600)) >= 0);
    w->fd = semaphores;
}
static void make_messages(struct wait *w) {
    if (messages < 0) REQUIRE((messages = msgget(IPC_PRIVATE, 0600)) >= 0);
    w->fd = messages;
}

/* System V objects stay when this process has been killed: another one, which is none of its descendants, removes them then. */
static void have_objects_removed(void) {
    make_semaphore(&(struct wait){0});
    make_messages(&(struct wait){0});
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
    _exit(0);
}
static void make_inotify(struct wait *w) { REQUIRE((w->fd = inotify_init1(IN_CLOEXEC)) >= 0); }
static void make_nothing(struct wait *w) { w->fd = -1; }

static struct kind {
    const char *name;
    long (*call)(struct wait *);
    void (*make)(struct wait *);
    long expected;
    /* A child has what had not been read in larger pieces, and may have room. */
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
};

static struct kind endless[] = {
    {"epoll_wait", ever_epoll_wait, make_epoll, 0, 0},      {"epoll_pwait2", ever_epoll_pwait2, make_epoll, 0, 0},
    {"sigwaitinfo", ever_sigwaitinfo, make_nothing, 0, 0},  {"semop", ever_semop, make_semaphore, 0, 0},
    {"msgrcv", ever_msgrcv, make_messages, 0, 0},           {"pause", ever_pause, make_nothing, 0, 0},
    {"sigsuspend", ever_sigsuspend, make_nothing, 0, 0},    {"recv", call_recv, make_silent, 0, 0},
    {"inotify", call_read, make_inotify, 0, 0},             {"futex", ever_futex, make_nothing, 0, 0},
};
#define COUNT(array) (sizeof(array) / sizeof *(array))

static struct wait waits[THREADS_MAX];

/* A wait of a child that the fork interrupted: it ends when the time is over that was left at the parent's last tick. */
static void check_interrupted(struct wait *w, uint64_t begun, uint64_t ended) {
    uint64_t since = atomic_load(&child_since_us), ticked = atomic_load(&ticked_us);
    uint64_t passed = ticked > begun ? ticked - begun : 0;
    uint64_t left = passed < limit_us ? limit_us - passed : 0;
    uint64_t took = ended > since ? ended - since : 0;
    uint64_t late = atomic_load(&lateness_us);
    REQUIRE(took <= left + CHILD_SLACKS * slack_us + DELAYS * late, "%s of the child took %llu us, and had %llu left, with delays of %llu",
            w->name, (unsigned long long)took, (unsigned long long)left, (unsigned long long)late);
}

/* The machine's lateness, for a wait that was late when all have measured that of the same time, too. */
static uint64_t lateness(int is_late) {
    struct timespec look = {.tv_nsec = 1000000};
    uint64_t measured = atomic_load(&measures) + 2 * SLEEPERS;
    while (is_late && atomic_load(&measures) < measured && !atomic_load(&is_over)) nanosleep(&look, NULL);
    return atomic_load(&lateness_us);
}

static void *wait_again_and_again(void *argument) {
    struct wait *w = argument;
    while (!atomic_load(&is_over)) {
        uint64_t begun = monotonic_us();
        int was_child = atomic_load(&child_since_us) != 0;
        atomic_store(&w->begun_us, begun);
        long result = w->call(w);
        uint64_t ended = monotonic_us();
        if (atomic_load(&is_over)) break;
        errno = result < 0 ? (int)-result : 0;
        if (w->may_pass_in_child && result > 0 && access(PAYLOAD_PATH, F_OK) == 0) {
            atomic_fetch_add(&w->count, ENOUGH);
            return NULL;
        }
        REQUIRE(result == w->expected, "%s gave %ld after %llu us", w->name, result,
                (unsigned long long)(ended - begun));
        /* Where the main thread has not yet found out, its next look tells. */
        struct timespec look = {.tv_nsec = 30000000};
        if (!was_child && access(PAYLOAD_PATH, F_OK) == 0) {
            while (!atomic_load(&child_since_us)) nanosleep(&look, NULL);
            check_interrupted(w, begun, ended);
        } else {
            REQUIRE(ended - begun + TOO_EARLY_US >= limit_us, "%s took %llu us only", w->name,
                    (unsigned long long)(ended - begun));
            uint64_t slack = was_child ? CHILD_SLACKS * slack_us : slack_us;
            uint64_t delays = DELAYS * lateness(ended - begun > limit_us + slack);
            REQUIRE(ended - begun <= limit_us + slack + delays, "%s took %llu us, with delays of %llu", w->name,
                    (unsigned long long)(ended - begun), (unsigned long long)(delays / DELAYS));
            if (ended - begun > w->longest_us) w->longest_us = ended - begun;
        }
        atomic_fetch_add(&w->count, 1);
    }
    return NULL;
}

static void *wait_for_ever(void *argument) {
    struct wait *w = argument;
    long result = w->call(w);
    errno = result < 0 ? (int)-result : 0;
    REQUIRE(atomic_load(&is_over), "%s without a limit gave %ld", w->name, result);
    return NULL;
}

/* The machine's own delays, as waits without any restart see them: they end in one moment, as the others do. */
static void *measure_lateness(void *unused) {
    (void)unused;
    while (!atomic_load(&is_over)) {
        uint64_t due = (monotonic_us() / limit_us + 1) * limit_us;
        struct timespec end = {.tv_sec = (time_t)(due / 1000000), .tv_nsec = (long)(due % 1000000 * 1000)};
        long result = CALL(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &end, 0);
        uint64_t now = monotonic_us();
        REQUIRE(result == 0, "a sleep until a time gave %ld", result);
        uint64_t worst = atomic_load(&lateness_us);
        if (!atomic_load(&child_since_us) && access(PAYLOAD_PATH, F_OK) != 0)
            while (now - due > worst && !atomic_compare_exchange_weak(&lateness_us, &worst, now - due)) {}
        atomic_fetch_add(&measures, 1);
    }
    return NULL;
}

static unsigned start(const struct kind *all, size_t count, unsigned used, void *(*body)(void *)) {
    for (size_t i = 0; i < count; i++) {
        struct wait *w = &waits[used++];
        pthread_t thread;
        *w = (struct wait){.name = all[i].name, .call = all[i].call, .expected = all[i].expected,
                           .may_pass_in_child = all[i].may_pass_in_child};
        all[i].make(w);
        REQUIRE(pthread_create(&thread, NULL, body, w) == 0);
    }
    return used;
}

static void await_payload(char payload[PAYLOAD_BYTES_MAX]) {
    struct timespec tick = {.tv_nsec = TICK_NS};
    while (!find_payload(payload)) {
        uint64_t now = monotonic_us(), before = atomic_load(&ticked_us);
        uint64_t late = before && now - before > TICK_NS / 1000 ? now - before - TICK_NS / 1000 : 0;
        if (late > atomic_load(&lateness_us)) atomic_store(&lateness_us, late);
        atomic_store(&ticked_us, now);
        say("tick %llu", (unsigned long long)now);
        nanosleep(&tick, NULL);
    }
    atomic_store(&child_since_us, monotonic_us());
}

/* Each wait is over twice more: what the fork interrupted, and one that the child began. */
static void await_two_rounds(unsigned count) {
    uint64_t before[THREADS_MAX];
    for (unsigned i = 0; i < count; i++) before[i] = atomic_load(&waits[i].count);
    for (unsigned i = 0; i < count; i++) {
        uint64_t begun = monotonic_us();
        while (atomic_load(&waits[i].count) < (before[i] < ENOUGH ? before[i] + 2 : ENOUGH)) {
            REQUIRE(monotonic_us() - begun < 20 * limit_us + 5000000, "%s does not end", waits[i].name);
            usleep(1000);
        }
    }
}

int main(int count, char **arguments) {
    if (count > 1) limit_us = strtoull(arguments[1], NULL, 10) * 1000;
    if (count > 2) slack_us = strtoull(arguments[2], NULL, 10) * 1000;
    have_objects_removed();
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, ALARM_SIGNAL);
    pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    pthread_t thread;
    for (int i = 0; i < SLEEPERS; i++) REQUIRE(pthread_create(&thread, NULL, measure_lateness, NULL) == 0);
    unsigned limited = start(kinds, COUNT(kinds), 0, wait_again_and_again);
    start(endless, COUNT(endless), limited, wait_for_ever);
    for (unsigned i = 0; i < limited; i++)
        while (!atomic_load(&waits[i].begun_us)) usleep(100);

    char payload[PAYLOAD_BYTES_MAX];
    ready(word_of(5));
    await_payload(payload);
    await_two_rounds(limited);
    atomic_store(&is_over, 1);
    finish(payload, word_of(5));
}
