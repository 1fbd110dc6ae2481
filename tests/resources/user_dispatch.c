/* Two threads whose system calls the kernel can turn into signals (Syscall User Dispatch), and one without. */
#include "dispatch.h"

static pthread_t threads[2];
static int are_set[2], to_threads[2];

static void *run(void *dispatches) {
    char byte;
    if (dispatches) dispatch_calls();
    REQUIRE(write(are_set[1], "x", 1) == 1 && read(to_threads[0], &byte, 1) == 1);
    return is_call_dispatched() == (dispatches != NULL) ? to_threads : NULL;
}

static void set_up(void) {
    char byte;
    REQUIRE(pipe(are_set) == 0 && pipe(to_threads) == 0);
    for (int i = 0; i < 2; i++) REQUIRE(pthread_create(&threads[i], NULL, run, i ? to_threads : NULL) == 0 && read(are_set[0], &byte, 1) == 1);
    dispatch_calls();
    REQUIRE(is_call_dispatched());
}

static void check(void) {
    void *result;
    REQUIRE(is_call_dispatched(), "the main thread executes blocked calls");
    REQUIRE(write(to_threads[1], "xx", 2) == 2);
    for (int i = 0; i < 2; i++) REQUIRE(pthread_join(threads[i], &result) == 0 && result == to_threads, "thread %d", i);
}
