/* A parent whose child, told `N idle`, does nothing at all from then on: what it costs is what a child costs. Others answer.
 * usage: idle
 */
#include "../forked.h"

int main(int count, char **arguments) {
    (void)arguments;
    REQUIRE(count == 1, "usage: idle");
    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);
    if (strstr(payload, "idle") != NULL)
        for (;;) pause();
    finish(payload, 0);
}
