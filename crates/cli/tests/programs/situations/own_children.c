/* A parent with children of its own, one that runs and one that has ended and waits to be reaped. In a child of farfork's they
 * are not there: it is told so, and neither waits for ever nor signals another process.
 */
#include "../forked.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

int main(void) {
    pid_t living = fork();
    REQUIRE(living >= 0);
    if (living == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    pid_t ended = fork();
    REQUIRE(ended >= 0);
    if (ended == 0) _exit(7);

    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);

    int status;
    REQUIRE(waitpid(-1, &status, 0) < 0 && errno == ECHILD);
    REQUIRE(waitpid(living, &status, 0) < 0 && errno == ECHILD);
    REQUIRE(waitpid(ended, &status, WNOHANG) < 0 && errno == ECHILD);
    REQUIRE(kill(living, 0) < 0 && errno == ESRCH, "pid %d is another process here", living);
    pid_t own = fork();
    REQUIRE(own >= 0);
    if (own == 0) _exit(9);
    REQUIRE(waitpid(own, &status, 0) == own && WEXITSTATUS(status) == 9);
    finish(payload, 0);
}
