/* A process that is root in its own user namespace (unshare(2), CLONE_NEWUSER) and unprivileged outside: not carried. */
#include "resource.h"

#include <sched.h>
#include <sys/prctl.h>

static void set_up(void) {
    REQUIRE(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
    /* Makes the process dumpable again. After setresuid(2), root owns its files in /proc, and its own user cannot trace
     * it. */
    REQUIRE(prctl(PR_SET_DUMPABLE, 1) == 0);
    REQUIRE(unshare(CLONE_NEWUSER) == 0);
    int map = open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
    REQUIRE(map >= 0 && write(map, "0 65534 1", 9) == 9 && close(map) == 0);
    REQUIRE(getuid() == 0);
}

static void check(void) {
    char rights[64];
    REQUIRE(getuid() == 0);
    REQUIRE(read_line("/proc/self/status", "CapEff:", rights, sizeof rights) && strtoull(rights, NULL, 16) != 0, "%s", rights);
}
