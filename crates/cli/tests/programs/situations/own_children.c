/* A parent with children of its own, one that runs and one that has ended and waits to be reaped. A child of farfork's has
 * the same, with their ids, and they are its own: what becomes of them there is nothing to the parent's.
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
