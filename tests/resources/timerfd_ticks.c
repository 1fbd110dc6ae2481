/* A timerfd that expires every 100 us. Many threads and descriptors lengthen the pause. The timerfd, which is read as the last one,
 * never has more expirations than its clock allows. */
#include "resource.h"

#include <sys/eventfd.h>
#include <sys/timerfd.h>

#define THREADS 150
#define DESCRIPTORS 800
#define PERIOD_NS 100000UL

static int timer;
static uint64_t armed_ns, counted;

static void *wait_forever(void *unused) {
    for (;;) pause();
    return unused;
}

static void count_and_compare(void) {
    uint64_t ticks;
    REQUIRE(read(timer, &ticks, sizeof ticks) == sizeof ticks);
    counted += ticks;
    uint64_t allowed = (now_ns(CLOCK_MONOTONIC) - armed_ns) / PERIOD_NS;
    REQUIRE(counted <= allowed, "%lu expirations, %lu allowed", counted, allowed);
}

static void set_up(void) {
    pthread_t thread;
    struct itimerspec each = {{0, PERIOD_NS}, {0, PERIOD_NS}};
    for (int made = 0; made < THREADS; made++) REQUIRE(pthread_create(&thread, NULL, wait_forever, NULL) == 0);
    for (int made = 0; made < DESCRIPTORS; made++) REQUIRE(eventfd(0, 0) >= 0);
    REQUIRE((timer = timerfd_create(CLOCK_MONOTONIC, 0)) >= 0);
    armed_ns = now_ns(CLOCK_MONOTONIC);
    REQUIRE(timerfd_settime(timer, 0, &each, NULL) == 0);
    count_and_compare();
}

static void check(void) {
    for (int read = 0; read < 3; read++) count_and_compare();
}
