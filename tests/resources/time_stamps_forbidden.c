/* Denied reads of the time stamp counter (PR_SET_TSC) in one thread and in the main thread of another process. The
 * harness reads clocks, which need the counter. */
#include "resource.h"

#include <setjmp.h>
#include <sys/prctl.h>

static pthread_t thread;
static pid_t other;
static int to_thread[2], to_other[2];
static __thread sigjmp_buf before;

static void jump(int signal) { siglongjmp(before, signal); }

/* Returns 1 if reading the time stamp counter raises SIGSEGV in this thread, and PR_GET_TSC shows that it must. */
static int are_forbidden(void) {
    int mode = 0;
    REQUIRE(prctl(PR_GET_TSC, &mode) == 0);
    if (sigsetjmp(before, 1) != 0) return mode == PR_TSC_SIGSEGV;
    __builtin_ia32_rdtsc();
    return mode == PR_TSC_ENABLE ? 0 : -1;
}

static int waits_and_looks(int from) {
    char byte;
    REQUIRE(prctl(PR_SET_TSC, PR_TSC_SIGSEGV) == 0);
    REQUIRE(read(from, &byte, 1) == 1);
    return are_forbidden();
}

static void *run(void *unused) { return waits_and_looks(to_thread[0]) == 1 ? unused : NULL; }

static void set_up(void) {
    REQUIRE(signal(SIGSEGV, jump) != SIG_ERR && pipe(to_thread) == 0 && pipe(to_other) == 0);
    REQUIRE((other = fork()) >= 0);
    if (other == 0) _exit(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 ? waits_and_looks(to_other[0]) : 2);
    REQUIRE(pthread_create(&thread, NULL, run, &other) == 0);
    usleep(10000);
}

static void check(void) {
    void *result;
    int status;
    REQUIRE(write(to_thread[1], "x", 1) == 1 && pthread_join(thread, &result) == 0 && result == &other, "the thread can read the counter");
    REQUIRE(write(to_other[1], "x", 1) == 1 && waitpid(other, &status, 0) == other);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 1, "the other process can read the counter: %x", status);
    REQUIRE(are_forbidden() == 0);
}
