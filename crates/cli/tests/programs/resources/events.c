/* eventfds with their counts and modes. Epolls: level-triggered, edge-triggered and one-shot targets, an epoll that
 * watches another, the program's data for each target, and a thread that waits in an epoll.
 */
#include "../forked.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#define COUNT 1000000007u

static int counter, semaphore, bell, epoll, outer;
static atomic_int is_waiting;

/* Waits for the bell without a time limit. The fork must not interrupt this wait. */
static void *wait_for_bell(void *unused) {
    (void)unused;
    int own = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data = {.u64 = 99}};
    REQUIRE(epoll_ctl(own, EPOLL_CTL_ADD, bell, &event) == 0);
    atomic_store(&is_waiting, 1);
    int events = epoll_wait(own, &event, 1, -1);
    REQUIRE(events == 1 && event.data.u64 == 99, "epoll_wait gave %d", events);
    return NULL;
}

static void watch(int fd, uint32_t events, uint64_t word) {
    struct epoll_event event = {.events = events, .data = {.u64 = word}};
    REQUIRE(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
}

static void check_counts(void) {
    uint64_t count = 0;
    REQUIRE(read(counter, &count, sizeof count) == sizeof count && count == COUNT, "count %lu", count);
    REQUIRE(read(counter, &count, sizeof count) == -1 && errno == EAGAIN);
    for (int i = 0; i < 3; i++) REQUIRE(read(semaphore, &count, sizeof count) == sizeof count && count == 1);
    REQUIRE(read(semaphore, &count, sizeof count) == -1 && errno == EAGAIN, "the semaphore has a count above three");
}

/* The counter and the semaphore are ready, the bell is not. The outer epoll sees the inner one. */
static void check_epolls(void) {
    struct epoll_event events[4];
    REQUIRE(epoll_wait(outer, events, 4, 1000) == 1 && events[0].data.u64 == 5);
    int count = epoll_wait(epoll, events, 4, 1000);
    REQUIRE(count == 2, "%d events", count);
    uint64_t words = events[0].data.u64 ^ events[1].data.u64;
    REQUIRE(words == (word_of(1) ^ word_of(2)), "the data of the targets changed");
    count = epoll_wait(epoll, events, 4, 0);
    REQUIRE(count == 0, "edge-triggered or one-shot targets were reported again: %d", count);
}

int main(void) {
    uint64_t one = 1;
    counter = eventfd(COUNT, EFD_NONBLOCK | EFD_CLOEXEC);
    semaphore = eventfd(3, EFD_SEMAPHORE | EFD_NONBLOCK);
    bell = eventfd(0, 0);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    outer = epoll_create1(0);
    watch(counter, EPOLLIN | EPOLLET, word_of(1));
    watch(semaphore, EPOLLIN | EPOLLONESHOT, word_of(2));
    watch(bell, EPOLLIN, word_of(3));
    struct epoll_event inner = {.events = EPOLLIN, .data = {.u64 = 5}};
    REQUIRE(epoll_ctl(outer, EPOLL_CTL_ADD, epoll, &inner) == 0);
    pthread_t waiter;
    REQUIRE(pthread_create(&waiter, NULL, wait_for_bell, NULL) == 0);
    while (!atomic_load(&is_waiting)) usleep(100);

    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);

    check_epolls();
    check_counts();
    REQUIRE(write(bell, &one, sizeof one) == sizeof one && pthread_join(waiter, NULL) == 0);
    finish(payload, 0);
}
