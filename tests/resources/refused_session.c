/* A process in a session that an ended sibling created. Its parent is no longer a subreaper, so the process cannot be
 * orphaned to it again: not carried. */
#include "resource.h"

#include <sys/prctl.h>

static pid_t *left;

static void set_up(void) {
    int status;
    pid_t self = getpid(), leader;
    left = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(left != MAP_FAILED && prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0 && (leader = fork()) >= 0);
    if (leader == 0) {
        if (setsid() < 0) _exit(1);
        pid_t child = fork();
        if (child > 0) _exit(0);
        while (getppid() != self) usleep(1000);
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) _exit(2);
        __atomic_store_n(left, getpid(), __ATOMIC_SEQ_CST);
        for (;;) pause();
    }
    REQUIRE(waitpid(leader, &status, 0) == leader && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    REQUIRE(COMES_TRUE(__atomic_load_n(left, __ATOMIC_SEQ_CST)));
    REQUIRE(prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0);
}

static void check(void) {
    int status;
    REQUIRE(kill(*left, SIGTERM) == 0 && waitpid(*left, &status, 0) == *left && WIFSIGNALED(status));
}
