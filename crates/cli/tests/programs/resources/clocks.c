/* Clocks. The monotonic clocks continue from the parent's values and never go backwards, whether they are read through
 * the vDSO or by the system call. The wall clock has the current time. A relative sleep and a timed wait end.
 */
#include "../forked.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#define SLEEP_MS 400

static atomic_int is_asleep;

static int64_t ns_of(struct timespec time) { return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec; }

static int64_t now_ns(clockid_t clock) {
    struct timespec now;
    REQUIRE(clock_gettime(clock, &now) == 0);
    return ns_of(now);
}

static int64_t now_ns_by_call(clockid_t clock) {
    struct timespec now;
    REQUIRE(syscall(SYS_clock_gettime, clock, &now) == 0);
    return ns_of(now);
}

/* Sleeps during the fork. The interrupted sleep is restarted, with at most its whole time. */
static void *sleep_over_the_fork(void *unused) {
    (void)unused;
    struct timespec whole = {.tv_sec = 0, .tv_nsec = SLEEP_MS * 1000000L};
    for (;;) {
        char payload[PAYLOAD_BYTES_MAX];
        int was_child = find_payload(payload);
        int64_t begin = now_ns(CLOCK_MONOTONIC);
        atomic_store(&is_asleep, 1);
        REQUIRE(nanosleep(&whole, NULL) == 0);
        int64_t slept_ms = (now_ns(CLOCK_MONOTONIC) - begin) / 1000000;
        REQUIRE(slept_ms >= SLEEP_MS, "slept %ld ms", (long)slept_ms);
        if (was_child) return NULL;
    }
}

static void check_clock(clockid_t clock, int64_t parent_ns, const char *name) {
    int64_t by_vdso_ns = now_ns(clock), by_call_ns = now_ns_by_call(clock), after_ns = now_ns(clock);
    REQUIRE(by_vdso_ns >= parent_ns, "%s went back by %ld ns", name, (long)(parent_ns - by_vdso_ns));
    /* This holds even if the thread is not scheduled between the calls. */
    REQUIRE(by_vdso_ns <= by_call_ns && by_call_ns <= after_ns, "%s: %ld by the vdso, %ld by a call, %ld by the vdso again", name,
            (long)by_vdso_ns, (long)by_call_ns, (long)after_ns);
}

/* Checks that absolute times of the monotonic clock that the parent read are still valid. */
static void check_absolute_wait(int64_t parent_ns) {
    struct timespec past = {.tv_sec = parent_ns / 1000000000, .tv_nsec = parent_ns % 1000000000};
    REQUIRE(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &past, NULL) == 0);
    int64_t begin = now_ns(CLOCK_MONOTONIC);
    int64_t end = begin + 20000000;
    struct timespec soon = {.tv_sec = end / 1000000000, .tv_nsec = end % 1000000000};
    REQUIRE(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &soon, NULL) == 0);
    REQUIRE(now_ns(CLOCK_MONOTONIC) >= end);
}

int main(void) {
    pthread_t sleeper;
    REQUIRE(pthread_create(&sleeper, NULL, sleep_over_the_fork, NULL) == 0);
    while (!atomic_load(&is_asleep)) usleep(100);
    int64_t monotonic_ns = 0, boot_ns = 0, wall_ns = 0;

    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    while (!find_payload(payload)) {
        monotonic_ns = now_ns(CLOCK_MONOTONIC);
        boot_ns = now_ns(CLOCK_BOOTTIME);
        wall_ns = now_ns(CLOCK_REALTIME);
        say("tick %llu", (unsigned long long)monotonic_us());
        usleep(2000);
    }

    check_clock(CLOCK_MONOTONIC, monotonic_ns, "CLOCK_MONOTONIC");
    check_clock(CLOCK_BOOTTIME, boot_ns, "CLOCK_BOOTTIME");
    check_clock(CLOCK_REALTIME, wall_ns, "CLOCK_REALTIME");
    check_absolute_wait(monotonic_ns);
    REQUIRE(pthread_join(sleeper, NULL) == 0);
    finish(payload, 0);
}
