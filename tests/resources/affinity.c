/* Threads with their own CPU affinity, and one with the default. */
#include "resource.h"

#include <sched.h>

#define THREADS 2

static pthread_t threads[THREADS];
static volatile int chosen, go_on;
static cpu_set_t all;

static int is_only(int cpu) {
    cpu_set_t now;
    REQUIRE(sched_getaffinity(0, sizeof now, &now) == 0);
    return CPU_COUNT(&now) == 1 && CPU_ISSET(cpu, &now);
}

static void *stay(void *argument) {
    int cpu = (int)(intptr_t)argument;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(cpu, &own);
    REQUIRE(sched_setaffinity(0, sizeof own, &own) == 0);
    __atomic_add_fetch(&chosen, 1, __ATOMIC_SEQ_CST);
    while (!go_on) usleep(1000);
    REQUIRE(is_only(cpu) && sched_getcpu() == cpu, "CPU %d", sched_getcpu());
    return NULL;
}

static void set_up(void) {
    int cpu = -1;
    REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
    for (int i = 0; i < THREADS; i++) {
        do cpu = (cpu + 1) % CPU_SETSIZE;
        while (!CPU_ISSET(cpu, &all));
        REQUIRE(pthread_create(&threads[i], NULL, stay, (void *)(intptr_t)cpu) == 0);
    }
    REQUIRE(COMES_TRUE(chosen == THREADS));
}

static void check(void) {
    cpu_set_t now;
    go_on = 1;
    for (int i = 0; i < THREADS; i++) REQUIRE(pthread_join(threads[i], NULL) == 0);
    REQUIRE(sched_getaffinity(0, sizeof now, &now) == 0 && CPU_EQUAL(&now, &all));
}
