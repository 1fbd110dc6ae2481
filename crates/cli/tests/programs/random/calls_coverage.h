/* Finds the system calls that an action makes. The action runs in a separate process, which is traced with all its
 * threads and children. A call counts if it succeeds, or if a thread still waits in it at the end. */
#pragma once

#include "random.h"

#include <sys/ptrace.h>
#include <sys/wait.h>

#define CALLS_END 1024
#define TASKS_MAX 64
#define DRAWS_COUNT 16 /* runs of an action; not every run makes all of its calls */
#define TRACE_OPTIONS (PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL)

static char was_made[CALLS_END];

static struct {
    pid_t tid;
    unsigned long call; /* the call in progress; CALLS_END if none is */
} tasks[TASKS_MAX];

static size_t tasks_count;

static size_t task_of(pid_t tid) {
    for (size_t i = 0; i < tasks_count; i++)
        if (tasks[i].tid == tid) return i;
    REQUIRE(tasks_count < TASKS_MAX);
    tasks[tasks_count].tid = tid, tasks[tasks_count].call = CALLS_END;
    return tasks_count++;
}

static void note_made(unsigned long call) {
    if (call < CALLS_END) was_made[call] = 1;
}

/* Records the system call of a stopped thread. Returns whether the first process is about to end. */
static int note_stop(pid_t first, pid_t tid, const char *name) {
    size_t task = task_of(tid);
    struct __ptrace_syscall_info info = {0};
    if (ptrace(PTRACE_GET_SYSCALL_INFO, tid, sizeof info, &info) <= 0) return 0;
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY || info.op == PTRACE_SYSCALL_INFO_SECCOMP) tasks[task].call = info.entry.nr;
    REQUIRE(tid != first || tasks[task].call != SYS_exit_group || info.entry.args[0] == 0, "%s does not succeed", name);
    if (info.op == PTRACE_SYSCALL_INFO_EXIT) {
        /* io_cancel(2) fails with EINPROGRESS when it has cancelled a request. */
        if (!info.exit.is_error || info.exit.rval == -EINPROGRESS) note_made(tasks[task].call);
        tasks[task].call = CALLS_END;
    }
    return tid == first && tasks[task].call == SYS_exit_group;
}

static void follow(pid_t first, const char *name) {
    tasks_count = 0;
    for (;;) {
        int status, signal = 0;
        pid_t tid = waitpid(-1, &status, __WALL);
        REQUIRE(tid > 0);
        REQUIRE(tid != first || WIFSTOPPED(status), "%s: %x", name, (unsigned)status);
        if (!WIFSTOPPED(status)) continue;
        if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
            if (note_stop(first, tid, name)) break;
        } else if (status >> 16 == 0 && WSTOPSIG(status) != SIGSTOP)
            signal = WSTOPSIG(status);
        ptrace(PTRACE_SYSCALL, tid, 0, signal);
    }
    for (size_t i = 0; i < tasks_count; i++)
        if (tasks[i].call != SYS_exit_group && tasks[i].call != SYS_exit) note_made(tasks[i].call);
    for (size_t i = 0; i < tasks_count; i++) kill(tasks[i].tid, SIGKILL);
    while (waitpid(-1, NULL, __WALL) > 0) continue;
}

static void trace_action(const char *name, void (*perform_one)(const char *)) {
    const char *own = directory;
    for (uint64_t draws = 0; draws < DRAWS_COUNT; draws++) {
        char path[PATH_BYTES_MAX];
        static unsigned number;
        snprintf(path, sizeof path, "%s/%u", own, number++);
        REQUIRE(mkdir(path, 0700) == 0);
        pid_t first = fork();
        REQUIRE(first >= 0);
        if (first == 0) {
            drawn = draws << 32, directory = path;
            REQUIRE(ptrace(PTRACE_TRACEME) == 0 && raise(SIGSTOP) == 0);
            perform_one(name);
            _exit(0);
        }
        REQUIRE(waitpid(first, NULL, __WALL) == first && ptrace(PTRACE_SETOPTIONS, first, 0, TRACE_OPTIONS) == 0);
        REQUIRE(ptrace(PTRACE_SYSCALL, first, 0, 0) == 0);
        follow(first, name);
    }
}

static void say_coverage(void) {
    for (unsigned call = 0; call < CALLS_END; call++)
        if (was_made[call]) say("call %u", call);
}
