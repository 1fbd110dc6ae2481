/* Threads that end all the time, each with a timer that signals it. At any time of the capture, each timer is carried: as
 * one that signals its thread, or as one whose thread has ended. */
#include "resource.h"

#define MAKERS 8

static pthread_t makers[MAKERS];
static uint64_t turns;
static uint32_t stop;

static void *make_timer(void *made) {
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 1};
    event._sigev_un._tid = gettid();
    struct itimerspec when = {.it_value = {.tv_sec = 1000}};
    int id;
    REQUIRE(syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &id) == 0);
    REQUIRE(syscall(SYS_timer_settime, id, 0, &when, NULL) == 0);
    usleep(1000);
    *(int *)made = id;
    return NULL;
}

static void *make_threads(void *unused) {
    while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) {
        pthread_t thread;
        struct itimerspec left;
        int id;
        REQUIRE(pthread_create(&thread, NULL, make_timer, &id) == 0 && pthread_join(thread, NULL) == 0);
        REQUIRE(syscall(SYS_timer_gettime, id, &left) == 0 && left.it_value.tv_sec > 900, "timer %d is gone", id);
        REQUIRE(syscall(SYS_timer_delete, id) == 0);
        __atomic_add_fetch(&turns, 1, __ATOMIC_SEQ_CST);
    }
    return unused;
}

static void set_up(void) {
    for (int i = 0; i < MAKERS; i++) REQUIRE(pthread_create(&makers[i], NULL, make_threads, NULL) == 0);
    REQUIRE(COMES_TRUE(__atomic_load_n(&turns, __ATOMIC_SEQ_CST) > 10));
}

static void check(void) {
    uint64_t before = __atomic_load_n(&turns, __ATOMIC_SEQ_CST);
    REQUIRE(COMES_TRUE(__atomic_load_n(&turns, __ATOMIC_SEQ_CST) > before + 10), "the threads do not continue");
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < MAKERS; i++) REQUIRE(pthread_join(makers[i], NULL) == 0);
}
