/* A parent that changes its credentials at each SIGUSR1, in four steps: other groups, not dumpable, a smaller
 * capability bounding set, another effective user. Each step changes which processes may trace it and its children.
 * usage: changing_credentials
 */
#include "../forked.h"

#include <grp.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>

static void become_another(int unused) {
    static int step;
    (void)unused;
    int error = errno;
    gid_t groups[] = {4};
    switch (step++) {
        case 0: REQUIRE(setgroups(1, groups) == 0); break;
        case 1: REQUIRE(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0); break;
        case 2: REQUIRE(prctl(PR_CAPBSET_DROP, CAP_SYS_BOOT, 0, 0, 0) == 0); break;
        case 3: REQUIRE(setresuid(0, 1, 0) == 0); break;
        default: REQUIRE(0, "more signals than steps");
    }
    errno = error;
}

int main(int count, char **arguments) {
    (void)arguments;
    REQUIRE(count == 1, "usage: changing_credentials");
    struct sigaction action = {.sa_handler = become_another, .sa_flags = SA_RESTART};
    REQUIRE(sigaction(SIGUSR1, &action, NULL) == 0);
    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);
    finish(payload, 0);
}
