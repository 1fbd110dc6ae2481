/* Signals and timers. Every thread blocks the signals that are sent here, so they stay pending. */
#pragma once

#include "random.h"

#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

#define AUTODISARM (1 << 31) /* SS_AUTODISARM */

static const int sent_signals[] = {SIGUSR1, SIGUSR2, SIGHUP, SIGTERM, SIGURG, SIGWINCH, SIGIO, 36, 37, 38, 39, 40, 41, 42, 60};
static const int other_signals[] = {SIGINT, SIGQUIT, SIGTSTP, SIGTTIN, SIGPIPE, SIGXCPU, 50, 51, 52, 63, 64};

/* The kernel's format of a signal action, without the changes that libc makes. */
struct kernel_action {
    void *handler;
    unsigned long flags;
    void *restorer;
    uint64_t mask;
};

static void block_sent_signals(void) {
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof sent_signals / sizeof *sent_signals; i++) sigaddset(&set, sent_signals[i]);
    REQUIRE(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
}

static void block_others(void) {
    sigset_t set;
    sigemptyset(&set);
    for (uint64_t left = below(6); left > 0; left--) sigaddset(&set, ONE_OF(other_signals));
    REQUIRE(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
}

static void handle(int signal) { (void)signal; }
static void handle_with_info(int signal, siginfo_t *info, void *context) { (void)signal, (void)info, (void)context; }

static void make_handlers(void) {
    static const int flags[] = {0, SA_RESTART, SA_NODEFER, (int)SA_RESETHAND, SA_ONSTACK, SA_NOCLDSTOP | SA_RESTART};
    for (uint64_t left = 1 + below(6); left > 0; left--) {
        struct sigaction action = {.sa_flags = ONE_OF(flags)};
        sigemptyset(&action.sa_mask);
        for (uint64_t more = below(5); more > 0; more--) sigaddset(&action.sa_mask, 1 + (int)below(64));
        action.sa_handler = one_in(3) ? SIG_IGN : handle;
        if (one_in(3)) action.sa_sigaction = handle_with_info, action.sa_flags |= SA_SIGINFO;
        REQUIRE(sigaction(one_in(2) ? ONE_OF(sent_signals) : ONE_OF(other_signals), &action, NULL) == 0);
    }
}

static void make_mask(void) { block_others(); }

static void make_pending(void) {
    for (uint64_t left = 1 + below(5); left > 0; left--)
        REQUIRE(sigqueue(getpid(), ONE_OF(sent_signals), (union sigval){.sival_ptr = (void *)draw()}) == 0);
    if (one_in(2)) REQUIRE(kill(getpid(), ONE_OF(sent_signals)) == 0);
    if (one_in(2)) REQUIRE(pthread_sigqueue(pthread_self(), ONE_OF(sent_signals), (union sigval){.sival_int = (int)draw()}) == 0);
    if (one_in(2)) REQUIRE(syscall(SYS_tgkill, getpid(), gettid(), ONE_OF(sent_signals)) == 0);
}

static void make_alternate_stack(void) {
    size_t bytes = 8192 + below(10) * 4096;
    stack_t stack = {.ss_sp = map_anonymous(bytes), .ss_size = bytes, .ss_flags = one_in(3) ? AUTODISARM : 0};
    REQUIRE(sigaltstack(&stack, NULL) == 0);
}

static struct timeval some_time(void) { return (struct timeval){.tv_sec = 2000 + (time_t)below(9999), .tv_usec = (suseconds_t)below(1000000)}; }

static void make_interval_timer(void) {
    static const int which[] = {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF};
    struct itimerval when = {.it_value = some_time()};
    if (one_in(2)) when.it_interval = some_time();
    REQUIRE(setitimer((__itimer_which_t)ONE_OF(which), &when, NULL) == 0);
}

static int timer_ids[64];
static size_t timers_count;

static void make_timers(void) {
    static const clockid_t clocks[] = {CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_BOOTTIME, CLOCK_PROCESS_CPUTIME_ID};
    for (uint64_t left = 1 + below(4); left > 0 && timers_count < 64; left--) {
        struct sigevent event = {.sigev_notify = SIGEV_NONE};
        if (!one_in(3)) event.sigev_notify = SIGEV_SIGNAL, event.sigev_signo = ONE_OF(sent_signals);
        event.sigev_value.sival_ptr = (void *)draw();
        if (one_in(3) && event.sigev_signo) event.sigev_notify = SIGEV_THREAD_ID, event._sigev_un._tid = gettid();
        int id;
        REQUIRE(syscall(SYS_timer_create, ONE_OF(clocks), one_in(6) ? NULL : &event, &id) == 0);
        struct itimerspec when = {.it_value = {.tv_sec = 2000 + (time_t)below(9999), .tv_nsec = (long)below(1000000000)}};
        if (one_in(2)) when.it_interval = (struct timespec){.tv_sec = (time_t)below(100), .tv_nsec = 1 + (long)below(999999999)};
        REQUIRE(one_in(4) || syscall(SYS_timer_settime, id, 0, &when, NULL) == 0);
        if (one_in(4))
            REQUIRE(syscall(SYS_timer_delete, id) == 0);
        else
            timer_ids[timers_count++] = id;
    }
}

static void state_signals(void) {
    for (int signal = 1; signal <= 64; signal++) {
        struct kernel_action action = {0};
        REQUIRE(syscall(SYS_rt_sigaction, signal, NULL, &action, 8) == 0);
        if (action.handler || action.flags || action.mask)
            state("signal %d: %p %lx %p %lx\n", signal, action.handler, action.flags, action.restorer, action.mask);
    }
}

static void state_timers(void) {
    static const char *const words[] = {"ID:", "signal:", "notify:", "ClockID:"};
    for (int which = ITIMER_REAL; which <= ITIMER_PROF; which++) {
        struct itimerval now;
        REQUIRE(getitimer((__itimer_which_t)which, &now) == 0);
        state("interval timer %d: ~%ld every %ld.%06ld\n", which, now.it_value.tv_sec * 1000 + now.it_value.tv_usec / 1000, now.it_interval.tv_sec, now.it_interval.tv_usec);
    }
    state_lines("/proc/self/timers", words, 4);
    for (size_t i = 0; i < timers_count; i++) {
        struct itimerspec now;
        REQUIRE(syscall(SYS_timer_gettime, timer_ids[i], &now) == 0, "timer %d", timer_ids[i]);
        state("timer %d: ~%ld every %ld.%09ld\n", timer_ids[i], now.it_value.tv_sec * 1000 + now.it_value.tv_nsec / 1000000, now.it_interval.tv_sec, now.it_interval.tv_nsec);
    }
}

/* States the signals of the calling thread. */
static void state_own_signals(const char *whose) {
    uint64_t mask = 0;
    stack_t stack = {0};
    REQUIRE(syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &mask, 8) == 0 && sigaltstack(NULL, &stack) == 0);
    state("%s: mask %lx, stack %p+%zu %x\n", whose, mask, stack.ss_sp, stack.ss_size, (unsigned)stack.ss_flags);
}

/* Takes pending signals one by one, in the kernel's order. */
static void use_up_signals(const char *whose) {
    sigset_t set;
    siginfo_t info;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof sent_signals / sizeof *sent_signals; i++) sigaddset(&set, sent_signals[i]);
    while (memset(&info, 0, sizeof info), sigtimedwait(&set, &info, &(struct timespec){0}) > 0)
        state("%s: pending %d, code %d, of %d, %d, value %p\n", whose, info.si_signo, info.si_code, info.si_pid, info.si_uid, info.si_value.sival_ptr);
}
