/* A POSIX lock on a device, held by a child that got the open file from its parent. Such a lock belongs to the process, not
 * to the open file, and all processes of the machine share the inode. Not carried. */
#include "resource.h"

#include <sys/prctl.h>

static pid_t child;

static void set_up(void) {
    struct flock range = {.l_type = F_WRLCK};
    int device, locked[2];
    char byte;
    REQUIRE((device = open("/dev/null", O_RDWR)) == 3 && pipe(locked) == 0);
    pid_t parent = getpid();
    child = fork();
    if (child == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(1);
        if (fcntl(device, F_SETLK, &range) != 0 || write(locked[1], "", 1) != 1) _exit(1);
        for (;;) pause();
    }
    REQUIRE(child > 0 && close(locked[1]) == 0 && read(locked[0], &byte, 1) == 1 && close(locked[0]) == 0);
}

static void check(void) {
    struct flock range = {.l_type = F_WRLCK};
    REQUIRE(fcntl(3, F_GETLK, &range) == 0 && range.l_type == F_WRLCK && range.l_pid == child);
}
