/* Two terminals that control their own sessions, like those of shells, each with an ended job in the foreground. One
 * shell has waited for its job, so only the number of the process group is left. The other has not waited. On request,
 * both take their terminals back and are then in the foreground. */
#include "resource.h"

#include <sys/prctl.h>
#include <termios.h>

enum { WAITED, WAITS, COUNT };

#define STATUS 3

static struct shell {
    uint32_t is_ready, is_told, has_taken, interrupts;
    pid_t pid, job;
} *shells, *own;

static int masters[COUNT];

static void count(int signal) {
    (void)signal;
    __atomic_add_fetch(&own->interrupts, 1, __ATOMIC_SEQ_CST);
}

/* Returns whether the job is unchanged: no process if the shell has waited for it, otherwise an ended child. */
static int has_ended_once(int has_waited) {
    int status = 0;
    pid_t ended = waitpid(own->job, &status, WNOHANG);
    if (has_waited) return ended == -1 && errno == ECHILD;
    return ended == own->job && WIFEXITED(status) && WEXITSTATUS(status) == STATUS;
}

static __attribute__((noreturn)) void be_shell(pid_t parent, int master, int has_waited) {
    char name[32];
    int slave;
    siginfo_t ended;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(1);
    if (ptsname_r(master, name, sizeof name) != 0 || setsid() < 0 || (slave = open(name, O_RDWR)) < 0) _exit(2);
    if (signal(SIGTTOU, SIG_IGN) == SIG_ERR || signal(SIGINT, count) == SIG_ERR) _exit(3);
    own->pid = getpid();
    pid_t job = fork();
    if (job == 0) _exit(setpgid(0, 0) == 0 && tcsetpgrp(slave, getpid()) == 0 ? STATUS : STATUS + 1);
    own->job = job;
    if (waitid(P_PID, (id_t)job, &ended, WEXITED | (has_waited ? 0 : WNOWAIT)) != 0 || ended.si_status != STATUS) _exit(4);
    __atomic_store_n(&own->is_ready, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&own->is_told, __ATOMIC_SEQ_CST)) usleep(1000);
    int is_right = tcgetpgrp(slave) == own->job && has_ended_once(has_waited) && tcsetpgrp(slave, getpid()) == 0;
    __atomic_store_n(&own->has_taken, is_right ? 1 : 2, __ATOMIC_SEQ_CST);
    for (;;) pause();
}

static void set_up(void) {
    pid_t self = getpid();
    shells = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(shells != MAP_FAILED);
    for (int i = 0; i < COUNT; i++) {
        masters[i] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
        REQUIRE(masters[i] >= 0 && unlockpt(masters[i]) == 0);
        own = &shells[i];
        pid_t shell = fork();
        REQUIRE(shell >= 0);
        if (shell == 0) {
            for (int other = 0; other <= i; other++)
                if (other != i) close(masters[other]);
            be_shell(self, masters[i], i == WAITED);
        }
        REQUIRE(COMES_TRUE(__atomic_load_n(&shells[i].is_ready, __ATOMIC_SEQ_CST)), "shell %d", i);
    }
}

static void check(void) {
    for (int i = 0; i < COUNT; i++) {
        struct shell *shell = &shells[i];
        REQUIRE(tcgetpgrp(masters[i]) == shell->job && tcgetsid(masters[i]) == shell->pid, "terminal %d", i);
        __atomic_store_n(&shell->is_told, 1, __ATOMIC_SEQ_CST);
        REQUIRE(COMES_TRUE(__atomic_load_n(&shell->has_taken, __ATOMIC_SEQ_CST) != 0), "shell %d does not answer", i);
        REQUIRE(shell->has_taken == 1, "the job or the terminal of shell %d has changed", i);
        REQUIRE(tcgetpgrp(masters[i]) == shell->pid);
        REQUIRE(write(masters[i], "\003", 1) == 1);
        REQUIRE(COMES_TRUE(__atomic_load_n(&shell->interrupts, __ATOMIC_SEQ_CST) == 1), "shell %d is not interrupted", i);
    }
}
