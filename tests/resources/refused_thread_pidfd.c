/* Pidfds of single threads (PIDFD_THREAD), of which one is the main thread: a pidfd of the process would be another. */
#include "resource.h"

#ifndef PIDFD_THREAD
#define PIDFD_THREAD O_EXCL
#endif

static int pidfds[2];
static pid_t thread_id;

static void *live(void *ready) {
    thread_id = (pid_t)syscall(SYS_gettid);
    REQUIRE(write(*(int *)ready, "x", 1) == 1);
    for (;;) pause();
}

static void set_up(void) {
    int ends[2];
    char byte;
    pthread_t thread;
    REQUIRE(pipe(ends) == 0 && pthread_create(&thread, NULL, live, &ends[1]) == 0 && read(ends[0], &byte, 1) == 1);
    REQUIRE(close(ends[0]) == 0 && close(ends[1]) == 0);
    pidfds[0] = (int)syscall(SYS_pidfd_open, thread_id, PIDFD_THREAD);
    pidfds[1] = (int)syscall(SYS_pidfd_open, getpid(), PIDFD_THREAD);
    REQUIRE(pidfds[0] == 3 && pidfds[1] == 4);
}

static void check(void) {
    for (int index = 0; index < 2; index++) REQUIRE(syscall(SYS_pidfd_send_signal, pidfds[index], 0, NULL, 0) == 0);
}
