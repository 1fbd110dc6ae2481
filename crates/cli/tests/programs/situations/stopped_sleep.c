/* A thread sleeps in nanosleep(2), at one place in the code, again and again. SIGUSR1 ends a sleep early, so that the next
 * one begins. No other sleep ends before its time, even if the process is stopped and prepared during several of them.
 * usage: stopped_sleep MILLISECONDS
 */
#include "../forked.h"

#include <pthread.h>
#include <stdatomic.h>

static atomic_int has_slept;
static struct timespec limit;

static void ignore(int signal) { (void)signal; }

static void *sleep_in_a_loop(void *unused) {
    (void)unused;
    for (;;) {
        uint64_t begun_us = monotonic_us();
        int ended = nanosleep(&limit, NULL);
        uint64_t slept_us = monotonic_us() - begun_us;
        REQUIRE(ended == 0 || errno == EINTR);
        REQUIRE(ended != 0 || slept_us >= (uint64_t)limit.tv_sec * 1000000, "slept %llu us", (unsigned long long)slept_us);
        if (ended == 0) atomic_store(&has_slept, 1);
    }
}

int main(int argument_count, char **arguments) {
    REQUIRE(argument_count == 2);
    limit.tv_sec = atol(arguments[1]) / 1000;
    char payload[PAYLOAD_BYTES_MAX];
    struct sigaction action = {.sa_handler = ignore};
    pthread_t thread;
    sigset_t signals;
    REQUIRE(sigaction(SIGUSR1, &action, NULL) == 0);
    REQUIRE(pthread_create(&thread, NULL, sleep_in_a_loop, NULL) == 0);
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    ready(7);
    await_fork(payload);
    while (!atomic_load(&has_slept)) usleep(1000);
    finish(payload, 7);
}
