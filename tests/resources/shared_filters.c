/* Seccomp filters that threads share by inheritance. A later filter for all threads (SECCOMP_FILTER_FLAG_TSYNC)
 * applies to each. One filter denies a call that the restorer needs until its end. */
#include "resource.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

#define THREADS 4

static pthread_t threads[THREADS];
static volatile int ready, go_on;

static long deny(int call, int error, unsigned flags) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

static int fails_with(int call, int error) { return syscall(call) == -1 && errno == error; }

static void *run(void *unused) {
    __atomic_add_fetch(&ready, 1, __ATOMIC_SEQ_CST);
    while (!go_on) usleep(1000);
    REQUIRE(fails_with(SYS_getuid, 11) && fails_with(SYS_munmap, 22) && fails_with(SYS_getppid, 33), "a thread lacks a filter");
    return unused;
}

static void set_up(void) {
    REQUIRE(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && deny(SYS_getuid, 11, 0) == 0 && deny(SYS_munmap, 22, 0) == 0);
    for (int i = 0; i < THREADS; i++) REQUIRE(pthread_create(&threads[i], NULL, run, NULL) == 0);
    REQUIRE(COMES_TRUE(ready == THREADS));
}

static void check(void) {
    char line[64];
    long refusing = deny(SYS_getppid, 33, SECCOMP_FILTER_FLAG_TSYNC);
    REQUIRE(refusing == 0, "thread %ld of %d does not accept the filter", refusing, getpid());
    REQUIRE(read_line("/proc/self/status", "Seccomp_filters:", line, sizeof line) && atoi(line) == 3, "%s", line);
    go_on = 1;
    for (int i = 0; i < THREADS; i++) REQUIRE(pthread_join(threads[i], NULL) == 0);
}
