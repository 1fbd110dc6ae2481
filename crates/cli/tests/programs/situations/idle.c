/* A parent whose child does nothing if its payload is `N idle`: such a child has the minimum cost. Other children
 * answer.
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
