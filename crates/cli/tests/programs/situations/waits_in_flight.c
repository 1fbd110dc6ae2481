/* Threads that wait: each on a futex, a timer, or in a call with a time limit, chosen by a random number. No wait fails,
 * and none ends early by the clock that it counts with. The futex words are on pages that nothing else touches. If the
 * number is odd, there are two processes. In a child, the main threads first end the waits without a time limit, by calls
 * that the kernel makes with page faults disabled.
 * usage: waits_in_flight NUMBER THREADS
 */
#include "../forked.h"

#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>

#define NS 1000000000LL
#define LEAST_MS 3000 /* a prepare is earlier, unless the machine is very slow */
#define SPREAD_MS 2000
#define TIMER_SIGNAL (SIGRTMIN + 3)
#define STACK_BYTES (64 << 10)
#define FUTEX_LOCK_PI2_COMMAND 13
#define SYS_WAITV 449

/* One waiting thread. */
struct wait {
    pthread_t thread;
    uint32_t *words; /* two pages of its own */
    uint64_t random;
    int64_t limit_ns;
    int64_t end_ns; /* of `clock` */
    clockid_t clock;
    int kind;
};

struct waitv {
    uint64_t value, address;
    uint32_t flags, reserved;
};

static atomic_uint waiting;
static pid_t holder; /* thread that holds the PI locks of its process */

static int64_t now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * NS + now.tv_nsec;
}

static struct timespec timespec_of(int64_t ns) { return (struct timespec){ns / NS, ns % NS}; }

static uint32_t *second_word(const struct wait *wait) { return wait->words + PAGE_BYTES / sizeof(uint32_t); }

/* The wait begins now, and counts with this clock. */
static struct timespec begin(struct wait *wait, clockid_t clock, int is_absolute) {
    wait->clock = clock;
    wait->end_ns = now_ns(clock) + wait->limit_ns;
    atomic_fetch_add(&waiting, 1);
    return timespec_of(is_absolute ? wait->end_ns : wait->limit_ns);
}

static long futex(uint32_t *word, int operation, uint64_t value, const void *limit, uint32_t *other, uint32_t last) {
    return syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, limit, other, last);
}

/* ---- timers ---- */

static void wait_timerfd(struct wait *wait) {
    static const clockid_t clocks[] = {CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_REALTIME, CLOCK_BOOTTIME_ALARM,
                                       CLOCK_REALTIME_ALARM};
    clockid_t clock = clocks[wait->random % 5];
    int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_ALARM;
    int flags = wait->random >> 8 & 1 ? TFD_TIMER_ABSTIME | (is_wall && wait->random >> 9 & 1 ? 2 : 0) : 0;
    int fd = timerfd_create(clock, 0);
    REQUIRE(fd >= 0);
    /* A machine without a clock that runs while it is off cannot read the alarm clocks. */
    clockid_t readable = is_wall ? CLOCK_REALTIME : clock == CLOCK_MONOTONIC ? CLOCK_MONOTONIC : CLOCK_BOOTTIME;
    struct timespec first = begin(wait, flags ? readable : CLOCK_MONOTONIC, flags);
    int64_t interval_ns = wait->random >> 10 & 1 ? wait->limit_ns / 4 : 0;
    struct itimerspec time = {timespec_of(interval_ns), first};
    uint64_t ticks;
    REQUIRE(timerfd_settime(fd, flags, &time, NULL) == 0);
    REQUIRE(read(fd, &ticks, sizeof ticks) == sizeof ticks);
    if (interval_ns != 0) {
        REQUIRE(now_ns(wait->clock) >= wait->end_ns, "first expiration");
        REQUIRE(read(fd, &ticks, sizeof ticks) == sizeof ticks);
        wait->end_ns += interval_ns;
    }
    close(fd);
}

static void wait_posix_timer(struct wait *wait) {
    clockid_t clock = wait->random % 2 ? CLOCK_MONOTONIC : CLOCK_BOOTTIME;
    int flags = wait->random >> 8 & 1 ? TIMER_ABSTIME : 0;
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = TIMER_SIGNAL};
    event._sigev_un._tid = gettid();
    sigset_t signals;
    timer_t timer;
    sigemptyset(&signals);
    sigaddset(&signals, TIMER_SIGNAL);
    REQUIRE(timer_create(clock, &event, &timer) == 0);
    struct itimerspec time = {{0, 0}, begin(wait, clock, flags)};
    REQUIRE(timer_settime(timer, flags, &time, NULL) == 0);
    REQUIRE(sigwaitinfo(&signals, NULL) == TIMER_SIGNAL);
    timer_delete(timer);
}

/* ---- calls with a time limit ---- */

static void wait_nanosleep(struct wait *wait) {
    struct timespec limit = begin(wait, CLOCK_MONOTONIC, 0), left;
    struct timespec *rest[] = {NULL, &limit, &left};
    REQUIRE(nanosleep(&limit, rest[wait->random % 3]) == 0);
}

static void wait_clock_nanosleep(struct wait *wait) {
    clockid_t clock = wait->random % 2 ? CLOCK_MONOTONIC : CLOCK_BOOTTIME;
    int flags = wait->random >> 8 & 1 ? TIMER_ABSTIME : 0;
    struct timespec limit = begin(wait, clock, flags);
    REQUIRE(clock_nanosleep(clock, flags, &limit, wait->random >> 9 & 1 ? &limit : NULL) == 0);
}

static void wait_poll(struct wait *wait) {
    struct timespec limit = begin(wait, CLOCK_MONOTONIC, 0);
    struct timeval tv = {limit.tv_sec, limit.tv_nsec / 1000 + 1};
    int ms = (int)(wait->limit_ns / 1000000) + 1, epoll;
    switch (wait->random % 6) {
    case 0: REQUIRE(poll(NULL, 0, ms) == 0); break;
    case 1: REQUIRE(ppoll(NULL, 0, &limit, NULL) == 0); break;
    case 2: REQUIRE(select(0, NULL, NULL, NULL, &tv) == 0); break;
    case 3: REQUIRE(pselect(0, NULL, NULL, NULL, &limit, NULL) == 0); break;
    default: {
        struct epoll_event event;
        REQUIRE((epoll = epoll_create1(0)) >= 0);
        if (wait->random % 6 == 4) REQUIRE(epoll_wait(epoll, &event, 1, ms) == 0);
        else REQUIRE(syscall(SYS_epoll_pwait2, epoll, &event, 1, &limit, NULL, 8) == 0);
    }
    }
}

static void wait_signal(struct wait *wait) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGRTMIN + 4);
    struct timespec limit = begin(wait, CLOCK_MONOTONIC, 0);
    REQUIRE(sigtimedwait(&signals, NULL, &limit) == -1 && errno == EAGAIN);
}

static void wait_socket(struct wait *wait) {
    int pair[2];
    char byte;
    REQUIRE(socketpair(AF_UNIX, wait->random % 2 ? SOCK_STREAM : SOCK_DGRAM, 0, pair) == 0);
    struct timespec limit = begin(wait, CLOCK_MONOTONIC, 0);
    struct timeval tv = {limit.tv_sec, limit.tv_nsec / 1000 + 1};
    REQUIRE(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv) == 0);
    wait->end_ns = now_ns(CLOCK_MONOTONIC) + wait->limit_ns;
    REQUIRE(recv(pair[0], &byte, 1, 0) == -1 && errno == EAGAIN);
}

static void wait_futex(struct wait *wait) {
    uint32_t *word = wait->words;
    struct timespec limit;
    struct waitv vector = {0, (uint64_t)word, 2 | FUTEX_PRIVATE_FLAG, 0};
    long result;
    switch (wait->random % 7) {
    case 0:
        limit = begin(wait, CLOCK_MONOTONIC, 0);
        result = futex(word, FUTEX_WAIT, 0, &limit, NULL, 0);
        break;
    case 1:
        limit = begin(wait, CLOCK_MONOTONIC, 1);
        result = futex(word, FUTEX_WAIT_BITSET, 0, &limit, NULL, 1);
        break;
    case 2:
        limit = begin(wait, CLOCK_REALTIME, 1);
        result = futex(word, FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME, 0, &limit, NULL, 1);
        break;
    case 3:
        *word = (uint32_t)holder;
        limit = begin(wait, CLOCK_REALTIME, 1);
        result = futex(word, FUTEX_LOCK_PI, 0, &limit, NULL, 0);
        break;
    case 4:
        *word = (uint32_t)holder;
        limit = begin(wait, CLOCK_MONOTONIC, 1);
        result = futex(word, FUTEX_LOCK_PI2_COMMAND, 0, &limit, NULL, 0);
        break;
    case 5:
        limit = begin(wait, CLOCK_MONOTONIC, 1);
        result = syscall(SYS_WAITV, &vector, 1, 0, &limit, CLOCK_MONOTONIC);
        break;
    default:
        *second_word(wait) = (uint32_t)holder;
        limit = begin(wait, CLOCK_MONOTONIC, 1);
        result = futex(word, FUTEX_WAIT_REQUEUE_PI, 0, &limit, second_word(wait), 0);
    }
    REQUIRE(result == -1 && errno == ETIMEDOUT, "futex wait %d returned %ld", (int)(wait->random % 7), result);
}

/* ---- waits that the main thread ends ---- */

static void wait_pi_lock(struct wait *wait) {
    *wait->words = (uint32_t)holder;
    begin(wait, CLOCK_MONOTONIC, 0);
    wait->end_ns = 0;
    REQUIRE(futex(wait->words, wait->random % 2 ? FUTEX_LOCK_PI : FUTEX_LOCK_PI2_COMMAND, 0, NULL, NULL, 0) == 0);
    REQUIRE((*wait->words & FUTEX_TID_MASK) == (uint32_t)gettid());
}

static void wait_requeue(struct wait *wait) {
    begin(wait, CLOCK_MONOTONIC, 0);
    wait->end_ns = 0;
    REQUIRE(futex(wait->words, FUTEX_WAIT_REQUEUE_PI, 0, NULL, second_word(wait), 0) == 0);
}

static void wait_wake_operation(struct wait *wait) {
    begin(wait, CLOCK_MONOTONIC, 0);
    wait->end_ns = 0;
    REQUIRE(futex(wait->words, FUTEX_WAIT, 0, NULL, NULL, 0) == 0 || errno == EAGAIN);
}

static void wait_vector(struct wait *wait) {
    struct waitv vector[2] = {{0, (uint64_t)second_word(wait), 2 | FUTEX_PRIVATE_FLAG, 0},
                              {0, (uint64_t)wait->words, 2 | FUTEX_PRIVATE_FLAG, 0}};
    begin(wait, CLOCK_MONOTONIC, 0);
    wait->end_ns = 0;
    REQUIRE(syscall(SYS_WAITV, vector, 2, 0, NULL, 0) >= 0 || errno == EAGAIN);
}

/* In the main thread of a child: the words must be present, because none of these calls waits for a page. */
static void end_wait(struct wait *wait) {
    uint32_t *word = wait->words;
    const int set_one = FUTEX_OP(FUTEX_OP_SET, 1, FUTEX_OP_CMP_EQ, 0);
    switch (wait->kind) {
    case 8: /* The lock may have no waiter yet: then the word is 0 afterwards, or the waiter's. */
        REQUIRE(futex(word, FUTEX_UNLOCK_PI, 0, NULL, NULL, 0) == 0, "FUTEX_UNLOCK_PI");
        break;
    case 9: {
        long moved;
        do moved = futex(word, FUTEX_CMP_REQUEUE_PI, 1, (void *)0, second_word(wait), 0);
        while (moved == 0 || (moved == -1 && errno == EAGAIN));
        REQUIRE(moved == 1, "FUTEX_CMP_REQUEUE_PI returned %ld", moved);
        break;
    }
    case 10:
    case 11:
        REQUIRE(futex(word, FUTEX_WAKE_OP, 1, (void *)1, word, (uint32_t)set_one) >= 0, "FUTEX_WAKE_OP");
        break;
    default:
        break;
    }
}

static void (*const kinds[])(struct wait *) = {
    wait_timerfd, wait_posix_timer, wait_nanosleep, wait_clock_nanosleep, wait_poll,   wait_signal,
    wait_socket,  wait_futex,       wait_pi_lock,   wait_requeue,         wait_wake_operation, wait_vector,
};
#define KINDS (sizeof kinds / sizeof *kinds)

static void *run(void *argument) {
    struct wait *wait = argument;
    kinds[wait->kind](wait);
    int64_t early_ns = wait->end_ns == 0 ? 0 : wait->end_ns - now_ns(wait->clock);
    REQUIRE(early_ns <= 0, "kind %d, random %llx, ended %lld ns early", wait->kind, (unsigned long long)wait->random,
            (long long)early_ns);
    return NULL;
}

static struct wait *start_waits(uint64_t number, unsigned threads) {
    struct wait *waits = calloc(threads, sizeof *waits);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    holder = gettid();
    for (unsigned i = 0; i < threads; i++) {
        struct wait *wait = &waits[i];
        wait->random = word_of(number * 1000 + i);
        wait->kind = (int)(word_of(number * 1000 + i + 500) % KINDS);
        wait->limit_ns = (LEAST_MS + (int64_t)((wait->random >> 20) % SPREAD_MS)) * 1000000 + 123457;
        wait->words = map_anonymous(2 * PAGE_BYTES);
        REQUIRE(pthread_create(&wait->thread, &attributes, run, wait) == 0);
    }
    while (atomic_load(&waiting) < threads) usleep(1000);
    usleep(20000);
    return waits;
}

static void end_waits(struct wait *waits, unsigned threads) {
    for (unsigned i = 0; i < threads; i++) end_wait(&waits[i]);
    for (unsigned i = 0; i < threads; i++) REQUIRE(pthread_join(waits[i].thread, NULL) == 0);
}

/* The second process: its main thread waits for the lock `shared`, which the first process holds. */
static void run_second_process(pid_t parent, uint64_t number, unsigned threads, uint32_t *shared) {
    char payload[PAYLOAD_BYTES_MAX];
    end_with_parent(parent);
    struct wait *waits = start_waits(number + 1, threads);
    shared[1] = 1;
    REQUIRE(syscall(SYS_futex, shared, FUTEX_LOCK_PI, 0, NULL, NULL, 0) == 0, "the shared lock");
    while (!find_payload(payload)) usleep(1000);
    end_waits(waits, threads);
    _exit(EXIT_RIGHT);
}

int main(int argument_count, char **arguments) {
    REQUIRE(argument_count == 3);
    uint64_t number = strtoull(arguments[1], NULL, 10);
    unsigned threads = (unsigned)strtoul(arguments[2], NULL, 10);
    char payload[PAYLOAD_BYTES_MAX];
    pid_t self = getpid(), second = 0;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, TIMER_SIGNAL);
    sigaddset(&signals, SIGRTMIN + 4);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    volatile uint32_t *shared = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (number % 2) {
        threads /= 2;
        shared[0] = (uint32_t)gettid();
        second = fork();
        if (second == 0) run_second_process(self, number, threads, (uint32_t *)shared);
        while (!shared[1]) usleep(1000);
    }
    struct wait *waits = start_waits(number, threads);
    ready(number);
    await_fork(payload);
    if (second) REQUIRE(syscall(SYS_futex, shared, FUTEX_UNLOCK_PI, 0, NULL, NULL, 0) == 0, "the shared lock");
    end_waits(waits, threads);
    int status = 0;
    if (second) REQUIRE(waitpid(second, &status, 0) == second && WIFEXITED(status));
    REQUIRE(second == 0 || WEXITSTATUS(status) == EXIT_RIGHT, "the second process failed");
    finish(payload, number);
}
