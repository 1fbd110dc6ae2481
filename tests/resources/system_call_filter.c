/* Seccomp filters: two stacked ones for all threads, and a third for one thread. */
#include "resource.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

static pthread_t thread;
static volatile int is_ready, go_on;

static void deny(int call, int error, unsigned flags) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
    REQUIRE(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) == 0);
}

static int fails_with(int call, int error) { return syscall(call) == -1 && errno == error; }

static void *have_a_third(void *unused) {
    deny(SYS_getppid, 33, 0);
    is_ready = 1;
    while (!go_on) usleep(1000);
    REQUIRE(fails_with(SYS_getppid, 33) && fails_with(SYS_getuid, 11) && fails_with(SYS_munmap, 22), "the thread's filters");
    return unused;
}

static void set_up(void) {
    REQUIRE(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    deny(SYS_getuid, 11, 0);
    /* The restorer needs this call until its end. */
    deny(SYS_munmap, 22, SECCOMP_FILTER_FLAG_LOG);
    REQUIRE(pthread_create(&thread, NULL, have_a_third, NULL) == 0 && COMES_TRUE(is_ready));
}

static void check(void) {
    char line[64];
    REQUIRE(fails_with(SYS_getuid, 11) && fails_with(SYS_munmap, 22) && syscall(SYS_getppid) >= 0, "the leader's filters");
    REQUIRE(read_line("/proc/self/status", "Seccomp_filters:", line, sizeof line) && atoi(line) == 2, "%s", line);
    go_on = 1;
    REQUIRE(pthread_join(thread, NULL) == 0);
}
