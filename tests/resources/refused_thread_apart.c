/* A thread with its own current directory (unshare(2), CLONE_FS), as in file servers: not carried. */
#include "resource.h"

#include <sched.h>

static int is_apart, is_asked, is_right;

static void *live(void *unused) {
    char now[PATH_BYTES_MAX];
    int is_done = unshare(CLONE_FS) == 0 && chdir("/") == 0;
    __atomic_store_n(&is_apart, is_done ? 1 : -1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&is_asked, __ATOMIC_SEQ_CST)) usleep(1000);
    is_right = getcwd(now, sizeof now) && strcmp(now, "/") == 0;
    return unused;
}

static pthread_t thread;

static void set_up(void) {
    REQUIRE(chdir(directory) == 0 && pthread_create(&thread, NULL, live, NULL) == 0);
    REQUIRE(COMES_TRUE(__atomic_load_n(&is_apart, __ATOMIC_SEQ_CST) != 0) && is_apart == 1);
}

static void check(void) {
    char now[PATH_BYTES_MAX];
    __atomic_store_n(&is_asked, 1, __ATOMIC_SEQ_CST);
    REQUIRE(pthread_join(thread, NULL) == 0 && is_right);
    REQUIRE(getcwd(now, sizeof now) && strcmp(now, directory) == 0);
}
