/* Stopped children: one whose stop nobody has waited for, one whose stop was waited for, and one that goes on later. Each can be
 * continued, stops again, and ends. */
#include "resource.h"

static pid_t unreported, reported;

static pid_t start_stopped(void) {
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0)
        for (;;) pause();
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
    REQUIRE(waitpid(pid, &status, WUNTRACED | WNOHANG) == 0, "one stop is told of twice");
}

static void check(void) {
    int status;
    alarm(PATIENCE_MS / 1000);
    REQUIRE(waitpid(reported, &status, WUNTRACED | WNOHANG) == 0, "a stop that was waited for is told of again: %x", status);
    require_stop(unreported);
    pid_t both[] = {unreported, reported};
    for (int i = 0; i < 2; i++) {
        REQUIRE(kill(both[i], SIGCONT) == 0 && waitpid(both[i], &status, WCONTINUED) == both[i] && WIFCONTINUED(status));
        REQUIRE(kill(both[i], SIGSTOP) == 0);
        require_stop(both[i]);
        REQUIRE(kill(both[i], SIGKILL) == 0 && waitpid(both[i], &status, 0) == both[i] && WTERMSIG(status) == SIGKILL);
    }
}
