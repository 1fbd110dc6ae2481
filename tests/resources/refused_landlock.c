/* A process with one thread that Landlock confines (landlock(7)). The main thread is not confined, and has no privileges. */
#include "resource.h"

#include <linux/landlock.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define NOBODY 65534

static int is_confined[2], to_thread[2];
static pthread_t thread;

static int may_make_files(void) {
    int fd = open("/tmp", O_TMPFILE | O_WRONLY, 0600);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

static void *confine(void *unused) {
    char byte;
    struct landlock_ruleset_attr rules = {.handled_access_fs = LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_WRITE_FILE};
    int set = (int)syscall(SYS_landlock_create_ruleset, &rules, sizeof rules.handled_access_fs, 0);
    REQUIRE(set >= 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    REQUIRE(syscall(SYS_landlock_restrict_self, set, 0) == 0 && close(set) == 0 && !may_make_files());
    REQUIRE(write(is_confined[1], "x", 1) == 1 && read(to_thread[0], &byte, 1) == 1);
    return may_make_files() ? NULL : unused;
}

static void set_up(void) {
    char byte;
    REQUIRE(pipe(is_confined) == 0 && pipe(to_thread) == 0);
    REQUIRE(setresgid(NOBODY, NOBODY, NOBODY) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0);
    REQUIRE(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
    REQUIRE(pthread_create(&thread, NULL, confine, to_thread) == 0 && read(is_confined[0], &byte, 1) == 1);
}

static void check(void) {
    void *result;
    REQUIRE(write(to_thread[1], "x", 1) == 1 && pthread_join(thread, &result) == 0);
    REQUIRE(result == to_thread && may_make_files(), "the threads are confined otherwise");
}
