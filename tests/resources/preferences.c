/* Settings for I/O, memory failures and memory placement: I/O priority, PR_SET_IO_FLUSHER, PR_MCE_KILL and memory policy of
 * threads; PR_SET_MEMORY_MERGE and coredump_filter of processes; and a thread's name that is no UTF-8. */
#include "resource.h"

#include <sys/prctl.h>

#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#define PR_GET_MEMORY_MERGE 68
#endif
#define MPOL_INTERLEAVE 3
#define MPOL_LOCAL 4
#define NODES_MAX 1025

struct settings {
    long io_priority, io_flusher, mce_kill, memory_merge, policy_result;
    unsigned long nodes[16];
    int policy;
    char core_filter[16], name[16];
};

static pthread_t thread;
static pid_t other;
static struct settings *before; /* of the main thread, the other thread and the other process; shared with the latter */
static int are_set[2], to_thread[2], to_other[2];

static struct settings settings(void) {
    struct settings now;
    memset(&now, 0, sizeof now);
    now.io_priority = syscall(SYS_ioprio_get, 1, 0);
    now.io_flusher = prctl(PR_GET_IO_FLUSHER, 0, 0, 0, 0);
    now.mce_kill = prctl(PR_MCE_KILL_GET, 0, 0, 0, 0);
    now.memory_merge = prctl(PR_GET_MEMORY_MERGE, 0, 0, 0, 0);
    now.policy_result = syscall(SYS_get_mempolicy, &now.policy, now.nodes, NODES_MAX, 0, 0);
    REQUIRE(prctl(PR_GET_NAME, now.name) == 0);
    int fd = open("/proc/self/coredump_filter", O_RDONLY);
    REQUIRE(fd >= 0 && read(fd, now.core_filter, sizeof now.core_filter - 1) > 0 && close(fd) == 0);
    return now;
}

static void set_thread(long io_priority, long mce_kill, int policy, const unsigned long *nodes) {
    REQUIRE(syscall(SYS_ioprio_set, 1, 0, io_priority) == 0 && prctl(PR_MCE_KILL, PR_MCE_KILL_SET, mce_kill, 0, 0) == 0);
    REQUIRE(syscall(SYS_set_mempolicy, policy, nodes, nodes ? NODES_MAX : 0) == 0 || errno == ENOSYS);
}

/* Stores the settings, and waits for the check. Returns 1 if they are still the same. */
static int note_and_compare(struct settings *noted, int from) {
    char byte;
    *noted = settings();
    REQUIRE(write(are_set[1], "x", 1) == 1 && read(from, &byte, 1) == 1);
    struct settings now = settings();
    return memcmp(&now, noted, sizeof now) == 0;
}

static void *run(void *unused) {
    unsigned long nodes[17] = {1};
    set_thread(3 << 13, PR_MCE_KILL_LATE, MPOL_INTERLEAVE, nodes);
    REQUIRE(prctl(PR_SET_NAME, "a)\n(b \x01\xff") == 0);
    REQUIRE(prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) == 0 || errno == EPERM, "without CAP_SYS_RESOURCE");
    return note_and_compare(&before[1], to_thread[0]) ? unused : NULL;
}

static int run_other(void) {
    REQUIRE(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    int fd = open("/proc/self/coredump_filter", O_WRONLY);
    REQUIRE(fd >= 0 && write(fd, "0x7f", 4) == 4 && close(fd) == 0);
    return note_and_compare(&before[2], to_other[0]);
}

static void set_up(void) {
    char byte;
    before = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(before != MAP_FAILED && pipe(are_set) == 0 && pipe(to_thread) == 0 && pipe(to_other) == 0 && (other = fork()) >= 0);
    if (other == 0) _exit(run_other());
    set_thread(2 << 13 | 3, PR_MCE_KILL_EARLY, MPOL_LOCAL, NULL);
    REQUIRE(prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0) == 0 || errno == EINVAL, "without KSM");
    int fd = open("/proc/self/coredump_filter", O_WRONLY);
    REQUIRE(fd >= 0 && write(fd, "0x11", 4) == 4 && close(fd) == 0);
    before[0] = settings();
    REQUIRE(pthread_create(&thread, NULL, run, to_thread) == 0);
    for (int i = 0; i < 2; i++) REQUIRE(read(are_set[0], &byte, 1) == 1);
}

static void check(void) {
    void *result;
    int status;
    struct settings now = settings(), *old = &before[0];
    REQUIRE(now.io_priority == old->io_priority, "I/O priority %#lx instead of %#lx", now.io_priority, old->io_priority);
    REQUIRE(now.mce_kill == old->mce_kill, "PR_MCE_KILL %ld instead of %ld", now.mce_kill, old->mce_kill);
    REQUIRE(now.memory_merge == old->memory_merge, "PR_GET_MEMORY_MERGE %ld instead of %ld", now.memory_merge, old->memory_merge);
    REQUIRE(now.policy == old->policy, "memory policy %#x instead of %#x", now.policy, old->policy);
    REQUIRE(strcmp(now.core_filter, old->core_filter) == 0, "coredump_filter %s", now.core_filter);
    REQUIRE(memcmp(&now, old, sizeof now) == 0, "PR_GET_IO_FLUSHER or the nodes differ");
    REQUIRE(write(to_thread[1], "x", 1) == 1 && pthread_join(thread, &result) == 0 && result == to_thread, "the thread has other settings");
    REQUIRE(write(to_other[1], "x", 1) == 1 && waitpid(other, &status, 0) == other);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 1, "the other process has other settings: %x", status);
}
