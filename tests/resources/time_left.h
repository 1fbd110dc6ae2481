/* The time that a timer may have left. The clock is read before and after the timer is armed, and before and after it
 * is read, so that delays of a busy machine do not matter. Include this after resource.h. */
#pragma once

#define SECOND_NS 1000000000ull

static uint64_t arming_begun_ns, arming_ended_ns, asking_begun_ns;

static void begin_arming(void) { arming_begun_ns = now_ns(CLOCK_MONOTONIC); }

static void end_arming(void) { arming_ended_ns = now_ns(CLOCK_MONOTONIC); }

static void begin_asking(void) { asking_begun_ns = now_ns(CLOCK_MONOTONIC); }

/* Returns whether a timer of `whole_s` seconds that was just read may have `left_s` seconds left. `less` is the
 * tolerance, in seconds. */
static int may_be_left(long left_s, long whole_s, long less) {
    long gone_min_s = (long)((asking_begun_ns - arming_ended_ns) / SECOND_NS);
    long gone_max_s = (long)((now_ns(CLOCK_MONOTONIC) - arming_begun_ns) / SECOND_NS);
    return left_s <= whole_s - gone_min_s && left_s >= whole_s - gone_max_s - less;
}
