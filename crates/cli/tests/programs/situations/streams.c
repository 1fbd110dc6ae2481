/* Standard streams and signals of an attached child. The child repeats its input line by line, and writes to both
 * outputs. It ends with the status in its payload, or with 7 on SIGTERM.
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
        say("received %s", line);
    }
    say("end of input");
    return status;
}
