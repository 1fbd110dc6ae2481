/* Standard streams and signals of an attached child: it repeats its input line by line, speaks on both outputs, and ends
 * with the status that its payload asks for, or with 7 when it is told to terminate.
 * payload: NUMBER STATUS
 */
#include "../forked.h"

#include <signal.h>

#define EXIT_TERMINATED 7

static void end(int signal) {
    (void)signal;
    say("terminated");
    _exit(EXIT_TERMINATED);
}

int main(void) {
    struct sigaction terminate = {.sa_handler = end};
    sigaction(SIGTERM, &terminate, NULL);

    char payload[PAYLOAD_BYTES_MAX], line[256];
    ready(0);
    await_fork(payload);

    unsigned long number = 0;
    int status = EXIT_RIGHT;
    sscanf(payload, "%lu %d", &number, &status);
    say("child %lu", number);
    dprintf(STDERR_FILENO, "child %lu on standard error\n", number);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        say("heard %s", line);
    }
    say("end of input");
    return status;
}
