/* A thread that has created a pid namespace for the children that it forks. The threads of a child have one namespace for their
 * children: not carried. */
#include "resource.h"

#include <sched.h>

static int is_unshared, is_asked, has_answered, is_first;

static void *run_apart(void *unused) {
    int status;
    REQUIRE(unshare(CLONE_NEWPID) == 0);
    __atomic_store_n(&is_unshared, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&is_asked, __ATOMIC_SEQ_CST)) usleep(1000);
    pid_t pid = fork();
    if (pid == 0) _exit(getpid() == 1 ? 0 : 1);
    is_first = waitpid(pid, &status, 0) == pid && status == 0;
    __atomic_store_n(&has_answered, 1, __ATOMIC_SEQ_CST);
    return unused;
}

static void set_up(void) {
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, run_apart, NULL) == 0);
    REQUIRE(COMES_TRUE(__atomic_load_n(&is_unshared, __ATOMIC_SEQ_CST)));
}

static void check(void) {
    __atomic_store_n(&is_asked, 1, __ATOMIC_SEQ_CST);
    REQUIRE(COMES_TRUE(__atomic_load_n(&has_answered, __ATOMIC_SEQ_CST)) && is_first);
}
