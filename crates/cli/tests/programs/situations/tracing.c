/* A parent whose child, if its payload is `N traces`, forks a process that stops process 1 of the container by
 * ptrace(2). The child then does nothing. Other children answer.
 * usage: tracing
 */
#include "../forked.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

/* Stops process 1 of the child's pid namespace, and reports it. */
static void trace_first_process(int told) {
    require_container();
    REQUIRE(ptrace(PTRACE_SEIZE, 1, NULL, NULL) == 0, "process 1 cannot be traced");
    REQUIRE(ptrace(PTRACE_INTERRUPT, 1, NULL, NULL) == 0);
    int status;
    REQUIRE(waitpid(1, &status, __WALL) == 1 && WIFSTOPPED(status));
    REQUIRE(write(told, "t", 1) == 1);
    for (;;) pause();
}

int main(int count, char **arguments) {
    (void)arguments;
    REQUIRE(count == 1, "usage: tracing");
    remember_pid_namespace();
    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);
    if (strstr(payload, "traces") == NULL) finish(payload, 0);
    require_container();
    int told[2];
    REQUIRE(pipe(told) == 0);
    pid_t parent = getpid(), tracer = fork();
    REQUIRE(tracer >= 0);
    if (tracer == 0) {
        end_with_parent(parent);
        trace_first_process(told[1]);
    }
    char byte;
    REQUIRE(read(told[0], &byte, 1) == 1);
    say("traced");
    for (;;) pause();
}
