/* Sessions without their leaders. One leader was waited for, as for a daemon that forks twice; the session has a child
 * of the daemon and a process group without its leader. The other leader was not waited for. The remaining processes
 * are children of the first process, which is a subreaper (PR_SET_CHILD_SUBREAPER). */
#include "resource.h"

#include <sys/prctl.h>

enum { DAEMON, DAEMONS_CHILD, GROUPED, LEFT_BY_ZOMBIE, COUNT };

static struct {
    uint32_t is_ready[COUNT], is_settled[COUNT], signals[COUNT];
    pid_t pids[COUNT], first;
    uint32_t may_end;
} *shared;

static pid_t leader, group, zombie;
static int which;

static void note(int signal) {
    (void)signal;
    __atomic_add_fetch(&shared->signals[which], 1, __ATOMIC_SEQ_CST);
}

static __attribute__((noreturn)) void live(int self) {
    which = self;
    if (signal(SIGUSR1, note) == SIG_ERR) _exit(1);
    if (self == DAEMON && fork() == 0) live(DAEMONS_CHILD);
    shared->pids[self] = getpid();
    __atomic_store_n(&shared->is_ready[self], 1, __ATOMIC_SEQ_CST);
    while (getppid() != (self == DAEMONS_CHILD ? shared->pids[DAEMON] : shared->first)) usleep(1000);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) _exit(2);
    __atomic_store_n(&shared->is_settled[self], 1, __ATOMIC_SEQ_CST);
    for (;;) pause();
}

static void await_leave(void) {
    while (!__atomic_load_n(&shared->may_end, __ATOMIC_SEQ_CST)) usleep(1000);
}

/* Leads a session, and leaves two processes in it: a daemon, and a process in a group whose leader ends. */
static __attribute__((noreturn)) void lead(void) {
    if (setsid() < 0) _exit(1);
    if (fork() == 0) live(DAEMON);
    pid_t of_group = fork();
    if (of_group == 0) {
        setpgid(0, 0);
        if (fork() == 0) live(GROUPED);
        await_leave();
        _exit(0);
    }
    setpgid(of_group, of_group);
    await_leave();
    waitpid(of_group, NULL, 0);
    _exit(0);
}

static int has_parent(pid_t pid, pid_t parent) {
    char path[64], line[64] = "";
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    return read_line(path, "PPid:\t", line, sizeof line) && atoi(line) == parent;
}

static void set_up(void) {
    int status;
    shared = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(shared != MAP_FAILED && prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0);
    shared->first = getpid();
    REQUIRE((leader = fork()) >= 0);
    if (leader == 0) lead();
    REQUIRE((zombie = fork()) >= 0);
    if (zombie == 0) {
        if (setsid() < 0) _exit(1);
        if (fork() == 0) live(LEFT_BY_ZOMBIE);
        await_leave();
        _exit(9);
    }
    for (int one = 0; one < COUNT; one++) REQUIRE(COMES_TRUE(__atomic_load_n(&shared->is_ready[one], __ATOMIC_SEQ_CST)));
    group = getpgid(shared->pids[GROUPED]);
    __atomic_store_n(&shared->may_end, 1, __ATOMIC_SEQ_CST);
    REQUIRE(waitpid(leader, &status, 0) == leader);
    for (int one = 0; one < COUNT; one++)
        REQUIRE(COMES_TRUE(__atomic_load_n(&shared->is_settled[one], __ATOMIC_SEQ_CST)), "process %d", one);
}

static void check(void) {
    const pid_t *pids = shared->pids;
    int status;
    REQUIRE(getsid(pids[DAEMON]) == leader && getpgid(pids[DAEMON]) == leader && getsid(0) != leader);
    REQUIRE(getsid(pids[DAEMONS_CHILD]) == leader && getpgid(pids[DAEMONS_CHILD]) == leader);
    REQUIRE(getsid(pids[GROUPED]) == leader && getpgid(pids[GROUPED]) == group && group != leader);
    REQUIRE(getsid(pids[LEFT_BY_ZOMBIE]) == zombie && getpgid(pids[LEFT_BY_ZOMBIE]) == zombie);
    REQUIRE(has_parent(pids[DAEMON], getpid()) && has_parent(pids[DAEMONS_CHILD], pids[DAEMON]));
    REQUIRE(has_parent(pids[GROUPED], getpid()) && has_parent(pids[LEFT_BY_ZOMBIE], getpid()));
    REQUIRE(kill(leader, 0) == -1 && errno == ESRCH && waitpid(leader, &status, 0) == -1 && errno == ECHILD);
    REQUIRE(kill(group, 0) == -1 && errno == ESRCH);
    REQUIRE(kill(-leader, SIGUSR1) == 0 && kill(-group, SIGUSR1) == 0 && kill(-zombie, SIGUSR1) == 0);
    for (int one = 0; one < COUNT; one++) REQUIRE(COMES_TRUE(shared->signals[one] == 1), "process %d", one);
    REQUIRE(waitpid(zombie, &status, 0) == zombie && WIFEXITED(status) && WEXITSTATUS(status) == 9);
    for (int one = 0; one < COUNT; one++) {
        if (one == DAEMONS_CHILD) continue;
        REQUIRE(kill(pids[one], SIGTERM) == 0 && waitpid(pids[one], &status, 0) == pids[one]);
        REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "process %d", one);
    }
    REQUIRE(kill(pids[DAEMONS_CHILD], SIGKILL) == 0 && waitpid(pids[DAEMONS_CHILD], &status, 0) == pids[DAEMONS_CHILD]);
}
