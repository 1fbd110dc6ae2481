/* Ended and stopped children: five have ended without being waited for, one of them with a core, one with another exit
 * signal than SIGCHLD, and one without an exit signal; one is stopped; and one is orphaned and then adopted by the
 * process, a subreaper. The child gets no repeated signals about them, and keeps a pending signal of the same number. */
#include "resource.h"

#include <sys/prctl.h>
#include <sys/resource.h>

enum { EXITED, KILLED, DUMPED, STOPPED, PARENT, ORPHAN, COUNT };

static struct {
    pid_t orphan;
    int was_continued;
} *shared;

static pid_t pids[COUNT], cloned, silent;
static volatile sig_atomic_t told, told_before;
static int is_dumped;

static void hear(int signal) {
    (void)signal;
    told++;
}

static __attribute__((noreturn)) void leave_core(void) {
    struct rlimit limit;
    if (chdir(directory) != 0 || getrlimit(RLIMIT_CORE, &limit) != 0) _exit(1);
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_CORE, &limit) != 0) _exit(1);
    abort();
}

/* Returns whether the kernel writes cores to files. If it passes them to a program, a child cannot repeat the core of a
 * process. */
static int writes_cores(void) {
    char pattern[128] = "";
    read_line("/proc/sys/kernel/core_pattern", "", pattern, sizeof pattern);
    return strcmp(pattern, "core\n") == 0 || strcmp(pattern, "core.%p\n") == 0;
}

static __attribute__((noreturn)) void live(int which) {
    pid_t root = getppid();
    switch (which) {
    case EXITED: _exit(7);
    case KILLED:
        setpgid(0, 0);
        raise(SIGTERM);
        _exit(1);
    case DUMPED: leave_core();
    case STOPPED:
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) _exit(1);
        raise(SIGSTOP);
        shared->was_continued = 1;
        _exit(5);
    default: break;
    }
    pid_t orphan = fork();
    if (orphan == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) _exit(1);
        __atomic_store_n(&shared->orphan, getpid(), __ATOMIC_SEQ_CST);
    }
    while (getppid() == root || getpid() == shared->orphan) {
        if (getpid() == shared->orphan && kill(root, 0) != 0) _exit(98);
        usleep(20000);
    }
    _exit(98);
}

static char state_of(pid_t pid) {
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return '-';
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    const char *end = strrchr(text, ')');
    return length > 0 && end ? end[2] : '?';
}

static void set_up(void) {
    siginfo_t info;
    int status;
    shared = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(shared != MAP_FAILED && prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    REQUIRE(signal(SIGCHLD, hear) != SIG_ERR && signal(SIGUSR1, hear) != SIG_ERR);
    REQUIRE((cloned = (pid_t)syscall(SYS_clone, SIGUSR1, NULL, NULL, NULL, 0)) >= 0);
    if (cloned == 0) _exit(3);
    REQUIRE(COMES_TRUE(told == 1 && state_of(cloned) == 'Z'));
    REQUIRE((silent = (pid_t)syscall(SYS_clone, 0, NULL, NULL, NULL, 0)) >= 0);
    if (silent == 0) _exit(4);
    REQUIRE(COMES_TRUE(state_of(silent) == 'Z'));
    for (int which = EXITED; which <= PARENT; which++) {
        REQUIRE((pids[which] = fork()) >= 0);
        if (pids[which] == 0) live(which);
    }
    REQUIRE(waitid(P_PID, (id_t)pids[EXITED], &info, WEXITED | WNOWAIT) == 0);
    REQUIRE(waitid(P_PID, (id_t)pids[KILLED], &info, WEXITED | WNOWAIT) == 0);
    REQUIRE(waitid(P_PID, (id_t)pids[DUMPED], &info, WEXITED | WNOWAIT) == 0);
    is_dumped = info.si_code == CLD_DUMPED;
    REQUIRE(waitpid(pids[STOPPED], &status, WUNTRACED) == pids[STOPPED] && WIFSTOPPED(status));
    REQUIRE(COMES_TRUE(__atomic_load_n(&shared->orphan, __ATOMIC_SEQ_CST) != 0));
    pids[ORPHAN] = shared->orphan;
    told_before = told;
    sigset_t exit_signal;
    sigemptyset(&exit_signal);
    sigaddset(&exit_signal, SIGUSR1);
    REQUIRE(sigprocmask(SIG_BLOCK, &exit_signal, NULL) == 0 && raise(SIGUSR1) == 0);
}

static void check(void) {
    int status, subreaper = 0;
    sigset_t exit_signal;
    struct timespec at_once = {0, 0};
    sigemptyset(&exit_signal);
    sigaddset(&exit_signal, SIGUSR1);
    REQUIRE(sigtimedwait(&exit_signal, NULL, &at_once) == SIGUSR1, "the pending signal is lost");
    REQUIRE(sigtimedwait(&exit_signal, NULL, &at_once) == -1, "the exit signal is repeated");
    REQUIRE(told == told_before, "%d signals about children, before %d", (int)told, (int)told_before);
    REQUIRE(waitpid(cloned, &status, __WCLONE) == cloned && WIFEXITED(status) && WEXITSTATUS(status) == 3);
    REQUIRE(waitpid(silent, &status, __WCLONE) == silent && WIFEXITED(status) && WEXITSTATUS(status) == 4);
    REQUIRE(prctl(PR_GET_CHILD_SUBREAPER, &subreaper) == 0 && subreaper == 1);
    REQUIRE(state_of(pids[EXITED]) == 'Z' && state_of(pids[KILLED]) == 'Z');
    REQUIRE(getpgid(pids[KILLED]) == pids[KILLED] && getpgid(pids[EXITED]) == getpgrp());
    REQUIRE(waitpid(-pids[KILLED], &status, 0) == pids[KILLED] && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    REQUIRE(waitpid(pids[DUMPED], &status, 0) == pids[DUMPED] && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    int is_expected = is_dumped && (!is_child || writes_cores());
    REQUIRE(!WCOREDUMP(status) == !is_expected, "status %x", (unsigned)status);
    char left[64];
    snprintf(left, sizeof left, "/dev/shm/.farfork-core-%d", pids[DUMPED]);
    REQUIRE(access(left, F_OK) != 0 && errno == ENOENT);
    REQUIRE(waitpid(pids[EXITED], &status, 0) == pids[EXITED] && WIFEXITED(status) && WEXITSTATUS(status) == 7);

    /* A tracer that detaches wakes a stopped process, which then stops again in the kernel. */
    REQUIRE(COMES_TRUE(state_of(pids[STOPPED]) == 'T'), "state %c", state_of(pids[STOPPED]));
    REQUIRE(!shared->was_continued);
    REQUIRE(waitpid(pids[STOPPED], &status, WUNTRACED | WNOHANG) == 0, "its stop is reported again");
    REQUIRE(kill(pids[STOPPED], SIGCONT) == 0);
    REQUIRE(waitpid(pids[STOPPED], &status, 0) == pids[STOPPED] && WIFEXITED(status) && WEXITSTATUS(status) == 5);
    REQUIRE(shared->was_continued);

    REQUIRE(kill(pids[ORPHAN], 0) == 0 && kill(pids[PARENT], SIGKILL) == 0);
    REQUIRE(waitpid(pids[PARENT], &status, 0) == pids[PARENT] && WIFSIGNALED(status));
    REQUIRE(waitpid(pids[ORPHAN], &status, 0) == pids[ORPHAN] && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}
