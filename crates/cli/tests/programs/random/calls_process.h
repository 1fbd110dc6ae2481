/* Signals, timers, identity, scheduling, descendants, and restrictions that a process puts on itself, by system calls
 * that process.c does not make. */
#pragma once

#include "calls_memory.h"

#include <asm/ldt.h>
#include <asm/prctl.h>
#include <linux/bpf.h>
#include <linux/io_uring.h>
#include <linux/landlock.h>
#include <linux/perf_event.h>
#include <linux/sched.h>
#include <mqueue.h>
#include <sys/fsuid.h>
#include <sys/rseq.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define CHILD_STACK_BYTES 65536
#define WATCHED_MODE "stand"

/* Waits until it is killed. */
__attribute__((noreturn)) static void stand(void) {
    for (;;) pause();
}

/* Waits until it is killed, or until its parent ends. */
__attribute__((noreturn)) static void stand_as_child(void) {
    REQUIRE(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    stand();
}

static void send_signals_by_all_ways(void) {
    siginfo_t info = {.si_code = SI_QUEUE};
    int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    info.si_value.sival_ptr = (void *)draw();
    REQUIRE(syscall(SYS_tkill, gettid(), ONE_OF(sent_signals)) == 0 && syscall(SYS_rt_sigqueueinfo, getpid(), 41, &info) == 0);
    REQUIRE(syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), 42, &info) == 0 && syscall(SYS_pidfd_send_signal, self, 39, NULL, 0) == 0);
    REQUIRE(close(self) == 0);
}

static void set_old_timers(void) {
    struct itimerval when = {{1 + (time_t)below(99), 0}, {5000 + (time_t)below(999), 7}};
    alarm(3000 + (unsigned)below(1000)); /* the result, the rest of an earlier alarm, is unused */
    REQUIRE(setitimer(ITIMER_PROF, &when, NULL) == 0 && setitimer(ITIMER_VIRTUAL, &when, NULL) == 0);
}

static void set_prctls(void) {
    static const struct {
        int option;
        unsigned long values[2];
    } choices[] = {{PR_SET_PDEATHSIG, {SIGUSR1, 40}},   {PR_SET_TSC, {PR_TSC_ENABLE, PR_TSC_SIGSEGV}}, {PR_SET_CHILD_SUBREAPER, {1, 1}}, {PR_SET_THP_DISABLE, {1, 1}},
                   {PR_SET_TIMERSLACK, {60000, 999}},   {PR_SET_DUMPABLE, {0, 1}},                     {PR_SET_KEEPCAPS, {1, 1}},        {PR_SET_IO_FLUSHER, {1, 1}},
                   {67 /* PR_SET_MEMORY_MERGE */, {1, 1}}, {PR_SET_NO_NEW_PRIVS, {1, 1}}};
    for (uint64_t left = 1 + below(4); left > 0; left--) {
        size_t i = below(sizeof choices / sizeof *choices);
        /* Not every kernel has the option. */
        (void)!prctl(choices[i].option, choices[i].values[below(2)], 0, 0, 0);
    }
    if (one_in(3)) (void)!prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0);
    if (one_in(3)) (void)!prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, PR_SPEC_DISABLE, 0, 0);
}

static void set_segment_bases(void) {
    REQUIRE(syscall(SYS_arch_prctl, ARCH_SET_GS, new_area()) == 0);
    (void)!syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1);
}

/* EINVAL: a kernel may be built without names for memory. */
static void name_regions(void) { REQUIRE(prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, new_area(), PAGE_BYTES, "named") == 0 || errno == EINVAL); }

static void set_ldt(void) {
    struct user_desc segment = {.entry_number = (unsigned)below(10), .base_addr = 4096, .limit = 100, .seg_32bit = 1, .useable = 1};
    REQUIRE(syscall(SYS_modify_ldt, 1, &segment, sizeof segment) == 0);
}

static void register_with_kernel(void) {
    static struct {
        void *next;
        long offset;
        void *pending;
    } robust = {&robust, 16, NULL};
    static int ended;
    static __attribute__((aligned(32))) char area[32];
    char *own = (char *)__builtin_thread_pointer() + __rseq_offset;
    REQUIRE(syscall(SYS_set_robust_list, &robust, sizeof robust) == 0 && syscall(SYS_set_tid_address, &ended) > 0);
    REQUIRE(syscall(SYS_rseq, own, 32, 1 /* RSEQ_FLAG_UNREGISTER */, RSEQ_SIG) == 0 && syscall(SYS_rseq, area, 32, 0, 0x12345) == 0);
}

static void schedule(void) {
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
        uint32_t least, most;
    } attributes = {.size = 56, .policy = SCHED_BATCH, .nice = (int32_t)below(10)};
    struct sched_param parameter = {0};
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(0, &set);
    REQUIRE(syscall(SYS_sched_setattr, 0, &attributes, 0) == 0 && sched_setparam(0, &parameter) == 0);
    if (one_in(2)) REQUIRE(sched_setaffinity(0, sizeof set, &set) == 0);
    parameter.sched_priority = 2;
    if (one_in(2)) REQUIRE(sched_setscheduler(0, one_in(2) ? SCHED_RR : SCHED_FIFO, &parameter) == 0);
}

static void set_io_priority(void) { REQUIRE(syscall(SYS_ioprio_set, 1, 0, 2 << 13 | (long)below(8)) == 0); }

/* Prepares a child in one of several ways: a process group or session of its own, or execve(2) or execveat(2). Then
 * waits until it is killed. */
static void rest_as_child(unsigned kind) {
    char *const arguments[] = {"calls", WATCHED_MODE, NULL}, *const nothing[] = {NULL};
    REQUIRE(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    if (kind == 0) REQUIRE(setpgid(0, 0) == 0);
    if (kind == 1) REQUIRE(setsid() > 0);
    if (kind == 2) REQUIRE(execve("/proc/self/exe", arguments, nothing) == 0);
    if (kind == 3) REQUIRE(syscall(SYS_execveat, open("/proc/self/exe", O_RDONLY), "", arguments, nothing, AT_EMPTY_PATH) == 0);
    stand();
}

/* Waits until a process sleeps in the expected system call. */
static void await_rest(pid_t pid, const char *word) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/syscall", pid);
    for (int looks = 0; looks < LOOKS_MAX; looks++, usleep(1000))
        if (strncmp(read_whole(path), word, strlen(word)) == 0) return;
    REQUIRE(0, "process %d does not wait in the expected call: %s", pid, read_whole(path));
}

#define AT_PAUSE "34 "

static void begin_children(void) {
    struct clone_args arguments = {.exit_signal = SIGCHLD};
    for (unsigned kind = 0; kind < 4; kind++) {
        pid_t pid = (pid_t)(kind == 0 ? syscall(SYS_fork) : kind == 1 ? syscall(SYS_clone3, &arguments, sizeof arguments) : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
        REQUIRE(pid >= 0);
        if (pid == 0) rest_as_child(kind);
        await_rest(pid, AT_PAUSE);
    }
}

/* Leaves children that have ended and were not reaped, and reaps others. */
static void leave_children(void) {
    siginfo_t info;
    for (int i = 0; i < 3; i++) {
        pid_t pid = i == 0 ? vfork() : fork();
        if (pid == 0) _exit(i + 3);
        REQUIRE(pid > 0 && waitid(P_PID, (id_t)pid, &info, WEXITED | (i == 1 ? WNOWAIT : 0)) == 0);
    }
    pid_t pid = fork();
    if (pid == 0) _exit(1);
    REQUIRE(waitpid(pid, NULL, 0) == pid);
}

static void change_own_group(void) { REQUIRE(setpgid(0, 0) == 0 || errno == EPERM); }

static int share_table(void *nothing) {
    (void)nothing;
    stand_as_child();
}

/* Starts a process that shares file descriptors and the current directory with its parent. */
static void begin_sharers(void) {
    char *stack = map_anonymous(CHILD_STACK_BYTES);
    pid_t pid = clone(share_table, stack + CHILD_STACK_BYTES, CLONE_FILES | CLONE_FS | SIGCHLD, NULL);
    REQUIRE(pid > 0);
    await_rest(pid, AT_PAUSE);
}

/* A call may fail with EPERM if an earlier action dropped the capability. */
static void require_allowed(long outcome) { REQUIRE(outcome == 0 || errno == EPERM); }

static void change_ids(void) {
    uid_t ids[2] = {1 + (uid_t)below(9000), 1 + (uid_t)below(9000)};
    switch (below(4)) {
    case 0: require_allowed(syscall(SYS_setgid, ids[0])), require_allowed(syscall(SYS_setuid, ids[1])); break;
    case 1: require_allowed(syscall(SYS_setregid, ids[0], ids[1])), require_allowed(syscall(SYS_setreuid, ids[1], ids[0])); break;
    case 2: require_allowed(syscall(SYS_setresgid, ids[0], ids[1], 0)), require_allowed(syscall(SYS_setresuid, 0, ids[1], 0)); break;
    default: setfsgid(ids[0]), setfsuid(ids[1]);
    }
}

static void give_up_capabilities(void) {
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2];
    REQUIRE(syscall(SYS_capget, &head, sets) == 0);
    sets[0].effective &= ~(1U << below(30)), sets[0].permitted &= ~(1U << CAP_SYS_TIME), sets[0].inheritable = 1U << CAP_CHOWN;
    sets[0].effective &= sets[0].permitted;
    REQUIRE(syscall(SYS_capset, &head, sets) == 0);
    (void)!prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_CHOWN, 0, 0);
}

static void set_limits_by_all_ways(void) {
    struct rlimit old = {64UL << 20, 1UL << 30}, new = {100 + below(100), 900};
    REQUIRE(syscall(SYS_setrlimit, RLIMIT_CORE, &old) == 0 && syscall(SYS_prlimit64, 0, RLIMIT_SIGPENDING, &new, NULL) == 0);
}

static void restrict_to_ruleset(void) {
    struct landlock_ruleset_attr attributes = {.handled_access_fs = LANDLOCK_ACCESS_FS_MAKE_SOCK};
    struct landlock_path_beneath_attr rule = {.allowed_access = LANDLOCK_ACCESS_FS_MAKE_SOCK, .parent_fd = open("/tmp", O_PATH | O_CLOEXEC)};
    int ruleset = (int)syscall(SYS_landlock_create_ruleset, &attributes, sizeof attributes, 0);
    if (ruleset < 0 && (errno == ENOSYS || errno == EOPNOTSUPP)) return;
    REQUIRE(ruleset >= 0 && syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0);
    REQUIRE(syscall(SYS_landlock_restrict_self, ruleset, 0) == 0 && close(ruleset) == 0);
}

static void enter_own_names(void) {
    static const int kinds_of_namespaces[] = {CLONE_NEWUTS, CLONE_NEWCGROUP, CLONE_FS | CLONE_FILES};
    REQUIRE(unshare(ONE_OF(kinds_of_namespaces)) == 0);
    int own = open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC);
    REQUIRE(own >= 0 && setns(own, CLONE_NEWUTS) == 0 && close(own) == 0);
}

/* Renames the host in a new UTS namespace. Children see the name of their node instead. */
static void rename_host(void) {
    REQUIRE(unshare(CLONE_NEWUTS) == 0 && sethostname("farfork-test", 12) == 0 && setdomainname("test", 4) == 0);
}

static void make_ring_of_requests(void) {
    struct io_uring_params parameters = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 4, &parameters);
    REQUIRE(ring >= 0 && syscall(SYS_io_uring_enter, ring, 0, 0, 0, NULL, 0) == 0);
    REQUIRE(syscall(SYS_io_uring_register, ring, IORING_REGISTER_EVENTFD, &(int){eventfd(0, 0)}, 1) == 0);
}

static void make_message_queue(void) {
    struct mq_attr attributes = {.mq_maxmsg = 4, .mq_msgsize = 16}, changed = {.mq_flags = O_NONBLOCK};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = 40};
    char name[64];
    snprintf(name, sizeof name, "/farfork-calls-%d", getpid());
    mqd_t queue = mq_open(name, O_CREAT | O_RDWR, 0600, &attributes);
    REQUIRE(queue >= 0 && mq_unlink(name) == 0 && mq_send(queue, "one", 3, 1) == 0 && mq_send(queue, "two", 3, 2) == 0);
    char text[16];
    REQUIRE(mq_receive(queue, text, sizeof text, NULL) == 3 && mq_setattr(queue, &changed, NULL) == 0 && mq_notify(queue, &event) == 0);
}

static void make_perf_event(void) {
    struct perf_event_attr attributes = {.type = PERF_TYPE_SOFTWARE, .size = sizeof attributes, .config = PERF_COUNT_SW_TASK_CLOCK};
    REQUIRE(syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0) >= 0);
}

static void make_bpf_map(void) {
    union bpf_attr attributes = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 8, .max_entries = 2};
    REQUIRE(syscall(SYS_bpf, BPF_MAP_CREATE, &attributes, sizeof attributes) >= 0);
}

static void make_mount_descriptors(void) {
    int system = (int)syscall(SYS_fsopen, "tmpfs", 0), tree = (int)syscall(SYS_open_tree, AT_FDCWD, "/usr", 1 /* OPEN_TREE_CLONE */);
    REQUIRE(system >= 0 && syscall(SYS_fsconfig, system, 6 /* FSCONFIG_CMD_CREATE */, NULL, NULL, 0) == 0 && tree >= 0);
    struct {
        uint64_t set, cleared, propagation, users;
    } attributes = {.set = 1 /* MOUNT_ATTR_RDONLY */};
    REQUIRE(syscall(SYS_fsmount, system, 0, 0) >= 0 && syscall(SYS_fspick, AT_FDCWD, "/", 0) >= 0);
    REQUIRE(syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attributes, sizeof attributes) == 0);
}

/* Makes a pending request, a completed one, and a context that is destroyed. */
static void make_asynchronous_requests(void) {
    aio_context_t context = 0, gone = 0;
    int ends[2];
    char byte;
    REQUIRE(pipe(ends) == 0);
    struct iocb write_one = {.aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = (uint32_t)memfd_create("x", 0), .aio_buf = (uintptr_t)&byte, .aio_nbytes = 1};
    struct iocb poll_one = {.aio_lio_opcode = IOCB_CMD_POLL, .aio_fildes = (uint32_t)ends[0], .aio_buf = POLLIN}, *both[] = {&write_one, &poll_one};
    struct io_event events[2];
    REQUIRE(syscall(SYS_io_setup, 4, &gone) == 0 && syscall(SYS_io_destroy, gone) == 0 && syscall(SYS_io_setup, 4, &context) == 0);
    REQUIRE(syscall(SYS_io_submit, context, 2, both) == 2 && syscall(SYS_io_getevents, context, 1, 2, events, NULL) == 1);
    (void)!syscall(SYS_io_cancel, context, &poll_one, events);
    REQUIRE(syscall(SYS_io_submit, context, 1, both) == 1 && syscall(SYS_io_pgetevents, context, 1, 2, events, NULL, NULL) >= 1);
}
