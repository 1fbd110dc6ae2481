/* Stopped children: one with an unreported stop, one with a reported stop, and one that continues later. Each can be
 * continued, stops again, and ends. */
#include "resource.h"

#include <sys/prctl.h>

static pid_t unreported, reported;

static pid_t start_stopped(void) {
    int ends[2];
    char byte;
    pid_t parent = getpid(), pid = pipe(ends) == 0 ? fork() : -1;
    REQUIRE(pid >= 0);
    if (pid == 0) {
        /* Before the stop, because nothing else would end a stopped process whose parent is killed. */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent || write(ends[1], "x", 1) != 1) _exit(1);
        close(ends[0]), close(ends[1]);
        for (;;) pause();
    }
    REQUIRE(close(ends[1]) == 0 && read(ends[0], &byte, 1) == 1 && close(ends[0]) == 0);
    siginfo_t told;
    REQUIRE(kill(pid, SIGSTOP) == 0 && waitid(P_PID, (id_t)pid, &told, WSTOPPED | WNOWAIT) == 0 && told.si_status == SIGSTOP);
    return pid;
}

static void set_up(void) {
    int status;
    unreported = start_stopped(), reported = start_stopped();
    REQUIRE(waitpid(reported, &status, WUNTRACED) == reported && WIFSTOPPED(status));
}

static void require_stop(pid_t pid) {
    int status;
    REQUIRE(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP, "status %x", status);
    REQUIRE(waitpid(pid, &status, WUNTRACED | WNOHANG) == 0, "a stop is reported twice");
}

static void check(void) {
    int status;
    alarm(PATIENCE_MS / 1000);
    REQUIRE(waitpid(reported, &status, WUNTRACED | WNOHANG) == 0, "a reported stop is reported again: %x", status);
    require_stop(unreported);
    pid_t both[] = {unreported, reported};
    for (int i = 0; i < 2; i++) {
        REQUIRE(kill(both[i], SIGCONT) == 0 && waitpid(both[i], &status, WCONTINUED) == both[i] && WIFCONTINUED(status));
        REQUIRE(kill(both[i], SIGSTOP) == 0);
        require_stop(both[i]);
        REQUIRE(kill(both[i], SIGKILL) == 0 && waitpid(both[i], &status, 0) == both[i] && WTERMSIG(status) == SIGKILL);
    }
}
