/* A parent that is told by SIGUSR1 to become somebody else than it was, as often as there are ways: other groups, not dumpable, fewer
 * capabilities to be had, another user. Who may look into it, and into its children, is not who might before.
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
        default: REQUIRE(0, "told too often");
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
