/* A terminal that a process drives, like a terminal emulator, and that controls the session of its child, like a shell.
 * The shell has a job of two processes in the foreground. All can open /dev/tty, and Ctrl-C reaches only the job. */
#include "resource.h"

#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <termios.h>

enum { SHELL, JOB, JOBS_CHILD, COUNT };

static struct {
    uint32_t is_ready[COUNT], interrupts[COUNT], asked[COUNT], answers[COUNT];
    pid_t pids[COUNT];
} *shared;

static int master, slave, which;

static void count(int signal) {
    (void)signal;
    __atomic_add_fetch(&shared->interrupts[which], 1, __ATOMIC_SEQ_CST);
}

/* Returns whether the terminal is unchanged for this process. */
static int is_mine(void) {
    int own = open("/dev/tty", O_RDWR);
    int is_there = own >= 0 && tcgetsid(own) == shared->pids[SHELL] && tcgetpgrp(own) == shared->pids[JOB];
    close(own);
    return is_there && getsid(0) == shared->pids[SHELL] && tcgetpgrp(slave) == shared->pids[JOB];
}

static __attribute__((noreturn)) void live(pid_t parent) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent || signal(SIGINT, count) == SIG_ERR) _exit(1);
    shared->pids[which] = getpid();
    __atomic_store_n(&shared->is_ready[which], 1, __ATOMIC_SEQ_CST);
    for (;;) {
        usleep(1000);
        uint32_t asked = __atomic_load_n(&shared->asked[which], __ATOMIC_SEQ_CST);
        if (asked == 1) {
            shared->answers[which] = is_mine() ? 1 : 2;
            __atomic_store_n(&shared->asked[which], 0, __ATOMIC_SEQ_CST);
        }
    }
}

static __attribute__((noreturn)) void be_job(pid_t shell) {
    pid_t self = getpid();
    which = JOB;
    if (setpgid(0, 0) != 0) _exit(2);
    if (fork() == 0) {
        which = JOBS_CHILD;
        live(self);
    }
    live(shell);
}

static __attribute__((noreturn)) void be_shell(pid_t parent) {
    struct termios settings;
    char name[32];
    pid_t self = getpid();
    which = SHELL;
    if (ptsname_r(master, name, sizeof name) != 0 || close(master) != 0 || setsid() < 0) _exit(3);
    if ((slave = open(name, O_RDWR)) < 0 || tcgetattr(slave, &settings) != 0) _exit(4);
    settings.c_lflag &= ~(tcflag_t)ECHO;
    pid_t job = tcsetattr(slave, TCSANOW, &settings) == 0 ? fork() : -1;
    if (job == 0) be_job(self);
    if (job < 0 || (setpgid(job, job) != 0 && errno != EACCES) || tcsetpgrp(slave, job) != 0) _exit(5);
    live(parent);
}

static void set_up(void) {
    pid_t self = getpid();
    shared = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    REQUIRE(shared != MAP_FAILED && master >= 0 && unlockpt(master) == 0);
    pid_t shell = fork();
    REQUIRE(shell >= 0);
    if (shell == 0) be_shell(self);
    REQUIRE(COMES_TRUE(shared->is_ready[SHELL] && shared->is_ready[JOB] && shared->is_ready[JOBS_CHILD]));
}

static void check(void) {
    for (int i = 0; i < COUNT; i++) {
        shared->answers[i] = 0;
        __atomic_store_n(&shared->asked[i], 1, __ATOMIC_SEQ_CST);
        REQUIRE(COMES_TRUE(__atomic_load_n(&shared->asked[i], __ATOMIC_SEQ_CST) == 0), "process %d does not answer", i);
        REQUIRE(shared->answers[i] == 1, "the terminal has changed for process %d", i);
    }
    REQUIRE(tcgetpgrp(master) == shared->pids[JOB] && tcgetsid(master) == shared->pids[SHELL]);
    uint32_t before[COUNT];
    memcpy(before, shared->interrupts, sizeof before);
    REQUIRE(write(master, "\003", 1) == 1);
    REQUIRE(COMES_TRUE(shared->interrupts[JOB] == before[JOB] + 1 && shared->interrupts[JOBS_CHILD] == before[JOBS_CHILD] + 1));
    REQUIRE(shared->interrupts[SHELL] == before[SHELL], "Ctrl-C has reached the shell");
    REQUIRE(tcgetsid(master) != getsid(0), "the terminal controls the first process's session");
}
