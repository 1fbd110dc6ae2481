/* A parent with a thread in each kind of wait that a stop interrupts (signal(7)): calls with a time limit, which are
 * repeated, and calls without one, which never return. No handler is installed, so EINTR is an error. Other errors are
 * a wait that is shorter than its limit, a wait that does not end, and a call that changes its argument registers.
 *
 * With SLACK_MS, a wait must also not exceed its limit by more than SLACK_MS and the machine's own delays. A wait that
 * the fork interrupted must not last longer in the child than the time that was left. These checks need a machine with
 * idle CPUs.
 * usage: time_limits [LIMIT_MS [SLACK_MS]]
 */
#include "time_limits_calls.h"

#define TOO_EARLY_US 1500
#define THREADS_MAX 64
/* Number of threads that may each delay the end of a wait by the machine's longest delay. */
#define DELAYS 8
/* Number of threads that measure the machine's own delays. */
#define SLEEPERS 16
/* Factor for the slack of a child: its first steps also wait for pages. */
#define CHILD_SLACKS 10
/* Without SLACK_MS, a wait that exceeds its limit by more than this is an error. */
#define HANG_US 30000000ull
/* Number of rounds that is added for a thread that has ended, so that the main thread does not wait for more rounds. */
#define ENOUGH (1ull << 40)

static uint64_t slack_us = HANG_US;
static uint64_t child_slack_us = HANG_US;
/* The machine's longest own delay, as measured by threads that sleep until an absolute time. Includes the time for
 * which the threads are stopped. */
static _Atomic uint64_t lateness_us;
/* Number of measurements of the delay. */
static _Atomic uint64_t measures;
/* Times at which the main thread last ticked, and at which it found that it is a child. */
static _Atomic uint64_t ticked_us;
static _Atomic uint64_t child_since_us;
static _Atomic int is_over;

#define COUNT(array) (sizeof(array) / sizeof *(array))

static struct wait waits[THREADS_MAX];

/* Checks a wait that the fork interrupted. In the child, it may take only the time that was left at the parent's last
 * tick. */
static void check_interrupted(struct wait *w, uint64_t begun, uint64_t ended) {
    uint64_t since = atomic_load(&child_since_us), ticked = atomic_load(&ticked_us);
    uint64_t passed = ticked > begun ? ticked - begun : 0;
    uint64_t left = passed < limit_us ? limit_us - passed : 0;
    uint64_t took = ended > since ? ended - since : 0;
    uint64_t late = atomic_load(&lateness_us);
    REQUIRE(took <= left + child_slack_us + DELAYS * late, "%s of the child took %llu us, and had %llu left, with delays of %llu",
            w->name, (unsigned long long)took, (unsigned long long)left, (unsigned long long)late);
}

/* Returns the machine's longest delay. After a late wait, first waits until all threads have measured the time of this
 * wait too. */
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
        /* connect(2) returns 0. The other calls transfer at least one byte or message. */
        int has_passed = w->call == call_connect ? result == 0 : result > 0;
        if (w->may_pass_in_child && has_passed && access(PAYLOAD_PATH, F_OK) == 0) {
            atomic_fetch_add(&w->count, ENOUGH);
            return NULL;
        }
        REQUIRE(result == w->expected, "%s returned %ld after %llu us", w->name, result,
                (unsigned long long)(ended - begun));
        /* If the main thread has not found the payload yet, its next search will find it. */
        struct timespec look = {.tv_nsec = 30000000};
        if (!was_child && access(PAYLOAD_PATH, F_OK) == 0) {
            while (!atomic_load(&child_since_us)) nanosleep(&look, NULL);
            check_interrupted(w, begun, ended);
        } else {
            REQUIRE(ended - begun + TOO_EARLY_US >= limit_us, "%s took only %llu us", w->name,
                    (unsigned long long)(ended - begun));
            uint64_t slack = was_child ? child_slack_us : slack_us;
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
    REQUIRE(atomic_load(&is_over), "%s without a limit returned %ld", w->name, result);
    return NULL;
}

/* Measures the machine's own delays by waits that need no restart. Like the checked waits, all of them end at the same
 * time. */
static void *measure_lateness(void *unused) {
    (void)unused;
    while (!atomic_load(&is_over)) {
        uint64_t due = (monotonic_us() / limit_us + 1) * limit_us;
        struct timespec end = {.tv_sec = (time_t)(due / 1000000), .tv_nsec = (long)(due % 1000000 * 1000)};
        long result = CALL(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &end, 0);
        uint64_t now = monotonic_us();
        REQUIRE(result == 0, "a sleep until an absolute time returned %ld", result);
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

/* Waits for two more rounds of each wait: the one that the fork interrupted, and one that began in the child. */
static void await_two_rounds(unsigned count) {
    uint64_t before[THREADS_MAX];
    for (unsigned i = 0; i < count; i++) before[i] = atomic_load(&waits[i].count);
    for (unsigned i = 0; i < count; i++) {
        uint64_t begun = monotonic_us();
        while (atomic_load(&waits[i].count) < (before[i] < ENOUGH ? before[i] + 2 : ENOUGH)) {
            REQUIRE(monotonic_us() - begun < 20 * limit_us + HANG_US, "%s does not end", waits[i].name);
            usleep(1000);
        }
    }
}

int main(int count, char **arguments) {
    if (count > 1) limit_us = strtoull(arguments[1], NULL, 10) * 1000;
    if (count > 2) slack_us = strtoull(arguments[2], NULL, 10) * 1000, child_slack_us = CHILD_SLACKS * slack_us;
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
