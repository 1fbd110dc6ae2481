/* A child that has a segment of System V shared memory attached which its parent has not: not carried. */
#include "resource.h"

#include <sys/shm.h>

static pid_t other;
static int segment = -1;

static void set_up(void) {
    int ends[2];
    char byte;
    pid_t root = getpid();
    REQUIRE((segment = shmget(IPC_PRIVATE, PAGE_BYTES, 0600)) >= 0);
    REQUIRE(pipe(ends) == 0 && (other = fork()) >= 0);
    if (other == 0) {
        char *at = shmat(segment, NULL, 0);
        if (at == (void *)-1 || shmctl(segment, IPC_RMID, NULL) != 0 || write(ends[1], "x", 1) != 1) _exit(1);
        while (getppid() == root) usleep(10000);
        _exit(98);
    }
    REQUIRE(read(ends[0], &byte, 1) == 1);
}

static void check(void) {
    int status;
    REQUIRE(kill(other, SIGKILL) == 0 && waitpid(other, &status, 0) == other && WTERMSIG(status) == SIGKILL);
}
