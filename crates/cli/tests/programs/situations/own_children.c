/* A parent with two child processes: one runs, and one is a zombie. A child of farfork has copies of both, with the
 * same ids, as its own child processes. The end of the copies does not affect the parent.
 */
#include "../forked.h"

#include <sys/wait.h>

int main(void) {
    pid_t parent = getpid(), living = fork();
    REQUIRE(living >= 0);
    if (living == 0) {
        end_with_parent(parent);
        for (;;) pause();
    }
    pid_t ended = fork();
    REQUIRE(ended >= 0);
    if (ended == 0) _exit(7);

    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);

    int status;
    REQUIRE(waitpid(living, &status, WNOHANG) == 0 && kill(living, 0) == 0);
    REQUIRE(waitpid(ended, &status, 0) == ended && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    REQUIRE(kill(living, SIGTERM) == 0);
    REQUIRE(waitpid(-1, &status, 0) == living && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    REQUIRE(waitpid(-1, &status, 0) < 0 && errno == ECHILD);
    pid_t own = fork();
    REQUIRE(own >= 0);
    if (own == 0) _exit(9);
    REQUIRE(waitpid(own, &status, 0) == own && WEXITSTATUS(status) == 9);
    finish(payload, 0);
}
