/* A lock that a thread holds nearly all the time, and releases briefly. In a child, this thread continues.
 */
#include "../forked.h"

#include <pthread.h>

#define ROUNDS 100
#define HELD_NS 1000000L
#define LOCK_SECONDS_MAX 20

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t guarded[2];

static void *hold(void *unused) {
    struct timespec held = {.tv_sec = 0, .tv_nsec = HELD_NS};
    for (;;) {
        pthread_mutex_lock(&lock);
        guarded[0]++;
        nanosleep(&held, NULL);
        guarded[1]++;
        pthread_mutex_unlock(&lock);
        sched_yield();
    }
    return unused;
}

static void take_in_turn(void) {
    for (int i = 0; i < ROUNDS; i++) {
        struct timespec end;
        clock_gettime(CLOCK_REALTIME, &end);
        end.tv_sec += LOCK_SECONDS_MAX;
        int error = pthread_mutex_timedlock(&lock, &end);
        REQUIRE(error == 0, "the lock was not released: %s", strerror(error));
        REQUIRE(guarded[0] == guarded[1], "the lock was released too early");
        pthread_mutex_unlock(&lock);
    }
}

int main(void) {
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, hold, NULL) == 0);
    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);
    take_in_turn();
    finish(payload, 0);
}
