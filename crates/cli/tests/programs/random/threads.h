/* Threads, each in a wait of some kind. The fork must not end the wait. When a thread is released, it states its own
 * state. */
#pragma once

#include "signals.h"
#include "streams.h"

#include <fenv.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <xmmintrin.h>

#define WORKERS_MAX 24
#define WAITS_COUNT 8

struct worker {
    pthread_t thread;
    unsigned index, wait;
    uint64_t seed;
    atomic_int tid, let_go, may_speak, is_done;
    int ends[2];
};

static struct worker workers[WORKERS_MAX];
static unsigned workers_count;
static _Thread_local uint64_t own_words[32];

static long wait_for_word(struct worker *self, unsigned wait) {
    struct epoll_event event = {.events = EPOLLIN};
    struct pollfd watched = {.fd = self->ends[0], .events = POLLIN};
    struct timespec hour = {.tv_sec = 3600}, moment = {.tv_nsec = 300000};
    char byte;
    sigset_t set;
    int epoll = wait == 3 ? epoll_create1(EPOLL_CLOEXEC) : -1;
    if (wait == 3) REQUIRE(epoll_ctl(epoll, EPOLL_CTL_ADD, self->ends[0], &event) == 0);
    if (wait == 6) sigemptyset(&set), sigaddset(&set, SIGRTMAX);
    atomic_store(&self->tid, gettid());
    switch (wait) {
    case 0: return read(self->ends[0], &byte, 1);
    case 1: return poll(&watched, 1, -1);
    case 2: return ppoll(&watched, 1, &hour, NULL);
    case 3: return epoll_wait(epoll, &event, 1, -1);
    case 4:
        while (!atomic_load(&self->let_go)) syscall(SYS_futex, &self->let_go, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
        return 1;
    case 5:
        while (!atomic_load(&self->let_go)) nanosleep(&moment, NULL);
        return 1;
    case 6: return sigwaitinfo(&set, NULL) == SIGRTMAX;
    default:
        while (!atomic_load(&self->let_go)) sched_yield();
        return 1;
    }
}

static void set_up_thread(struct worker *self, uint64_t *at) {
    static const int rounding[] = {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
    char name[16];
    snprintf(name, sizeof name, "w%u %lx", self->index, word_of((*at)++) & 0xffffff);
    REQUIRE(prctl(PR_SET_NAME, name) == 0 && setpriority(PRIO_PROCESS, 0, (int)(word_of((*at)++) % 10)) == 0);
    fesetround(rounding[word_of((*at)++) % 4]);
    fill(own_words, sizeof own_words, (*at)++);
    if (word_of((*at)++) % 2) {
        stack_t stack = {.ss_sp = map_anonymous(16384), .ss_size = 16384};
        REQUIRE(sigaltstack(&stack, NULL) == 0);
    }
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGRTMAX);
    for (int i = 0; i < 4; i++) sigaddset(&set, other_signals[word_of((*at)++) % (sizeof other_signals / sizeof *other_signals)]);
    REQUIRE(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
}

static void *work(void *argument) {
    struct worker *self = argument;
    uint64_t at = self->seed;
    char whose[32], name[16];
    set_up_thread(self, &at);
    long outcome = wait_for_word(self, self->wait);
    int error = outcome < 0 ? errno : 0;
    while (!atomic_load(&self->may_speak)) usleep(200);
    snprintf(whose, sizeof whose, "thread %u", self->index);
    prctl(PR_GET_NAME, name);
    state("%s: %d, %s, wait %u gave %ld (%s), nice %d, policy %d, rounding %x, mxcsr %x, words %lx\n", whose, gettid(), name, self->wait, outcome,
          strerror(error), getpriority(PRIO_PROCESS, 0), sched_getscheduler(0), fegetround(), _mm_getcsr() & ~0x3fu, hash_of(own_words, sizeof own_words));
    state_own_signals(whose);
    use_up_signals(whose);
    atomic_store(&self->is_done, 1);
    return NULL;
}

static int sleeps(const struct worker *worker) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", atomic_load(&worker->tid));
    const char *text = read_whole(path), *end = strrchr(text, ')');
    return end && end[2] == 'S';
}

static void make_threads(void) {
    for (uint64_t left = 1 + below(4); left > 0 && workers_count < WORKERS_MAX; left--) {
        struct worker *worker = &workers[workers_count];
        worker->index = workers_count++;
        /* A thread of the last kind never sleeps, so there are few of them. */
        worker->wait = (unsigned)below(one_in(20) ? WAITS_COUNT : WAITS_COUNT - 1), worker->seed = draw();
        REQUIRE(pipe2(worker->ends, O_CLOEXEC) == 0 && pthread_create(&worker->thread, NULL, work, worker) == 0);
        while (!atomic_load(&worker->tid) || (worker->wait < WAITS_COUNT - 1 && !sleeps(worker))) usleep(100);
        if (one_in(3)) REQUIRE(pthread_sigqueue(worker->thread, ONE_OF(sent_signals), (union sigval){.sival_ptr = (void *)draw()}) == 0);
        if (one_in(5)) {
            struct sched_param parameter = {0};
            REQUIRE(sched_setscheduler(atomic_load(&worker->tid), one_in(2) ? SCHED_BATCH : SCHED_IDLE, &parameter) == 0);
        }
    }
}

/* Maximum number of observations of a thread until its state is final, at intervals of a millisecond. */
#define LOOKS_MAX 5000

/* In a child, the calling thread may be the first to run again. Other threads block all signals until they are
 * restored. A thread that was stopped in sigwaitinfo(2) blocks its signals until it is back in that call. */
static int is_awake(const struct worker *worker) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/status", atomic_load(&worker->tid));
    const char *line = strstr(read_whole(path), "SigBlk:\t");
    uint64_t blocked = line ? strtoul(line + strlen("SigBlk:\t"), NULL, 16) : 0;
    return blocked != 0xfffffffffffbfeff && !(worker->wait == 6 && blocked >> (SIGRTMAX - 1) & 1);
}

/* States the threads as other threads see them. */
static void state_threads(void) {
    for (unsigned i = 0; i < workers_count; i++)
        for (int looks = 0; looks < LOOKS_MAX && !is_awake(&workers[i]); looks++) usleep(1000);
    static const char *const words[] = {"Name:", "SigPnd:", "SigBlk:", "CapEff:", "NoNewPrivs:", "Seccomp:"};
    for (unsigned i = 0; i < workers_count; i++) {
        char path[64];
        int tid = atomic_load(&workers[i].tid);
        snprintf(path, sizeof path, "/proc/self/task/%d/status", tid);
        state("thread %d:\n", tid);
        state_lines(path, words, sizeof words / sizeof *words);
    }
}

/* Releases the threads one by one, because all write to the same statement. */
static void use_up_threads(void) {
    for (unsigned i = 0; i < workers_count; i++) {
        struct worker *worker = &workers[i];
        atomic_store(&worker->may_speak, 1);
        atomic_store(&worker->let_go, 1);
        if (worker->wait <= 3) REQUIRE(write(worker->ends[1], "x", 1) == 1);
        if (worker->wait == 4) syscall(SYS_futex, &worker->let_go, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        if (worker->wait == 6) REQUIRE(pthread_kill(worker->thread, SIGRTMAX) == 0);
        REQUIRE(pthread_join(worker->thread, NULL) == 0 && atomic_load(&worker->is_done));
    }
}
