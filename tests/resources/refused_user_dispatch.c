/* A thread whose system calls are blocked at the prepare (Syscall User Dispatch), because it computes. */
#include "dispatch.h"

static pthread_t thread;
static int is_set[2];
static volatile int is_told;

static void *run(void *unused) {
    dispatch_calls();
    REQUIRE(write(is_set[1], "x", 1) == 1);
    selector = 1;
    while (!is_told) __asm__ volatile("pause");
    long is_dispatched = is_call_dispatched();
    return is_dispatched ? unused : NULL;
}

static void set_up(void) {
    char byte;
    REQUIRE(pipe(is_set) == 0 && pthread_create(&thread, NULL, run, is_set) == 0 && read(is_set[0], &byte, 1) == 1);
}

static void check(void) {
    void *result;
    is_told = 1;
    REQUIRE(pthread_join(thread, &result) == 0 && result == is_set, "a blocked call was executed");
}
