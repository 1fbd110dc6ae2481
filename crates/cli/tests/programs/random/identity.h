/* The identity of the process, and its privileges. */
#pragma once

#include "random.h"

#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/membarrier.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#define FILTERED_CALL 134 /* uselib, which x86-64 lacks */
#define CHILD_SCORE_MIN 900
#define GET_REGISTRATIONS (1 << 9)

static struct rlimit late_limits[RLIM_NLIMITS];
static int limits_set[RLIM_NLIMITS];

/* Sets limits. Runs after all other resources exist, because some limits would prevent them. */
static void make_limits(void) {
    static const struct {
        int resource;
        rlim_t soft, hard;
    } choices[] = {{RLIMIT_CORE, 0, 1 << 30},      {RLIMIT_NOFILE, 64, 1024}, {RLIMIT_NOFILE, 2000, 4000}, {RLIMIT_STACK, 4 << 20, 64 << 20},
                   {RLIMIT_CPU, 1000, 2000},       {RLIMIT_FSIZE, 1 << 20, 1UL << 40}, {RLIMIT_DATA, 1UL << 32, 1UL << 40},
                   {RLIMIT_AS, 1UL << 46, 1UL << 46}, {RLIMIT_MEMLOCK, 4096, 8192}, {RLIMIT_NPROC, 50, 5000},     {RLIMIT_SIGPENDING, 9000, 10000},
                   {RLIMIT_MSGQUEUE, 1000, 10000}, {RLIMIT_NICE, 0, 0},       {RLIMIT_RTPRIO, 0, 0},       {RLIMIT_RTTIME, 1000000, 2000000}};
    for (uint64_t left = 1 + below(5); left > 0; left--) {
        size_t i = below(sizeof choices / sizeof *choices);
        late_limits[choices[i].resource] = (struct rlimit){choices[i].soft, choices[i].hard};
        limits_set[choices[i].resource] = 1;
    }
}

static void set_limits(void) {
    for (int i = 0; i < RLIM_NLIMITS; i++) {
        struct rlimit now;
        REQUIRE(getrlimit((__rlimit_resource_t)i, &now) == 0);
        if (limits_set[i] && late_limits[i].rlim_max <= now.rlim_max) REQUIRE(setrlimit((__rlimit_resource_t)i, &late_limits[i]) == 0);
    }
}

static void make_scheduling(void) {
    struct sched_param parameter = {0};
    REQUIRE(setpriority(PRIO_PROCESS, 0, (int)below(15)) == 0);
    if (one_in(2)) REQUIRE(sched_setscheduler(0, (one_in(2) ? SCHED_BATCH : SCHED_OTHER) | (one_in(2) ? SCHED_RESET_ON_FORK : 0), &parameter) == 0);
    if (one_in(2)) REQUIRE(prctl(PR_SET_TIMERSLACK, 50000 + below(1000000)) == 0);
}

static void make_names(void) {
    char name[16];
    snprintf(name, sizeof name, "n)%lx (", draw() & 0xffffff);
    REQUIRE(prctl(PR_SET_NAME, name) == 0);
    umask((mode_t)below(01000));
}

static void make_personality(void) {
    static const unsigned long personalities[] = {ADDR_NO_RANDOMIZE, READ_IMPLIES_EXEC, UNAME26, ADDR_NO_RANDOMIZE | STICKY_TIMEOUTS};
    REQUIRE(personality(ONE_OF(personalities)) >= 0);
}

static void make_privileges(void) {
    static const int dropped[] = {CAP_NET_RAW, CAP_SYS_TIME, CAP_MKNOD, CAP_AUDIT_WRITE, CAP_SYS_BOOT, CAP_NET_BIND_SERVICE, CAP_LEASE};
    static const unsigned long bits[] = {SECBIT_KEEP_CAPS, SECBIT_NO_SETUID_FIXUP, SECBIT_NOROOT, SECBIT_NO_CAP_AMBIENT_RAISE};
    gid_t groups[8];
    size_t count = below(8);
    for (size_t i = 0; i < count; i++) groups[i] = (gid_t)below(70000);
    /* The system call changes only this thread. The function of libc changes all threads. */
    if (one_in(2)) REQUIRE(syscall(SYS_setgroups, count, groups) == 0);
    if (one_in(3)) REQUIRE(syscall(SYS_setresgid, below(3), below(3), below(3)) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
    if (one_in(2)) REQUIRE(prctl(PR_SET_SECUREBITS, ONE_OF(bits)) == 0);
    for (uint64_t left = below(4); left > 0; left--) REQUIRE(prctl(PR_CAPBSET_DROP, ONE_OF(dropped)) == 0);
    if (one_in(2)) REQUIRE(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (one_in(4)) REQUIRE(prctl(PR_SET_DUMPABLE, 0) == 0);
}

/* Installs a filter that permits all calls except one that no program makes. */
static void make_filter(void) {
    struct sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, FILTERED_CALL, 0, 1),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)(1 + below(100))), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    REQUIRE(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, one_in(2) ? SECCOMP_FILTER_FLAG_TSYNC : 0, &program) == 0);
}

static void make_barriers(void) {
    static const int commands[] = {MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED,
                                   MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE};
    REQUIRE(syscall(SYS_membarrier, ONE_OF(commands), 0, 0) == 0);
}

static void make_score(void) {
    char text[16];
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    snprintf(text, sizeof text, "%d", (int)below(1001));
    REQUIRE(fd >= 0 && write(fd, text, strlen(text)) > 0);
    close(fd);
}

static void state_link_of(const char *link) {
    char path[PATH_BYTES_MAX] = {0};
    ssize_t bytes = readlink(link, path, sizeof path - 1);
    state("%s: %s\n", link, bytes < 0 ? strerror(errno) : path);
}

static void state_identity(void) {
    static const char *const words[] = {"Name:", "Umask:", "Uid:", "Gid:", "Groups:", "Threads:", "SigPnd:", "ShdPnd:", "SigBlk:", "SigIgn:", "SigCgt:",
                                        "CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:", "NoNewPrivs:", "Seccomp:", "Seccomp_filters:", "VmLck:"};
    state("process %d\n", getpid());
    state_lines("/proc/self/status", words, sizeof words / sizeof *words);
    state_link_of("/proc/self/cwd"), state_link_of("/proc/self/root"), state_link_of("/proc/self/exe");
    for (int i = 0; i < RLIM_NLIMITS; i++) {
        struct rlimit limit;
        REQUIRE(getrlimit((__rlimit_resource_t)i, &limit) == 0);
        state("limit %d: %lx %lx\n", i, limit.rlim_cur, limit.rlim_max);
    }
    state("nice %d, policy %x, slack %d\n", getpriority(PRIO_PROCESS, 0), sched_getscheduler(0), prctl(PR_GET_TIMERSLACK));
    state("personality %x, securebits %x, dumpable %d, barriers %lx\n", personality(0xffffffff), prctl(PR_GET_SECUREBITS), prctl(PR_GET_DUMPABLE),
          syscall(SYS_membarrier, GET_REGISTRATIONS, 0, 0));
    /* A child's score is at least CHILD_SCORE_MIN, whatever the parent's is. */
    long score = strtol(read_whole("/proc/self/oom_score_adj"), NULL, 10);
    state("score %ld\n", score < CHILD_SCORE_MIN ? CHILD_SCORE_MIN : score);
}

static void use_up_filter(void) {
    long outcome = syscall(FILTERED_CALL, NULL);
    state("a filtered call: %ld, %s\n", outcome, strerror(errno));
}
