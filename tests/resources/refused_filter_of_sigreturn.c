/* A seccomp filter of one thread that forbids rt_sigreturn(2), with which a child enters its threads. */
#include "resource.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

static pthread_t thread;
static volatile int is_ready, go_on;

static void *forbid_sigreturn(void *unused) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
    REQUIRE(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    REQUIRE(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
    is_ready = 1;
    while (!go_on) usleep(1000);
    return unused;
}

static void set_up(void) {
    REQUIRE(pthread_create(&thread, NULL, forbid_sigreturn, NULL) == 0 && COMES_TRUE(is_ready));
}

static void check(void) {
    go_on = 1;
    REQUIRE(pthread_join(thread, NULL) == 0);
}
