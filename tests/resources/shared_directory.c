/* Processes that share root, current directory and umask with their parents (clone(2), CLONE_FS): a child and its
 * child. Another child has its own. A change by one process applies to all that share. */
#include "resource.h"

#include <sched.h>
#include <sys/prctl.h>

enum { ROOT, SHARER, GRANDCHILD, APART, COUNT };

static struct {
    uint32_t is_ready[COUNT], is_asked[COUNT], has_answered[COUNT];
    char directory[COUNT][PATH_BYTES_MAX];
    mode_t mask[COUNT];
} *shared;

static pid_t born(int flags) { return (pid_t)syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0); }

static mode_t mask(void) {
    mode_t now = umask(0);
    umask(now);
    return now;
}

static __attribute__((noreturn)) void live(int which, pid_t parent) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(1);
    if (which == SHARER) {
        pid_t self = getpid(), child = born(CLONE_FS);
        if (child < 0) _exit(2);
        if (child == 0) live(GRANDCHILD, self);
    }
    __atomic_store_n(&shared->is_ready[which], 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&shared->is_asked[which], __ATOMIC_SEQ_CST)) usleep(1000);
    if (!getcwd(shared->directory[which], PATH_BYTES_MAX)) _exit(3);
    shared->mask[which] = mask();
    /* The grandchild is asked first: all others that share the directory must find its change. */
    if (which == GRANDCHILD) {
        if (chdir("/") != 0) _exit(4);
        umask(0123);
    }
    __atomic_store_n(&shared->has_answered[which], 1, __ATOMIC_SEQ_CST);
    for (;;) pause();
}

static pid_t children[COUNT];

static void set_up(void) {
    shared = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(shared != MAP_FAILED);
    pid_t self = getpid();
    for (int which = SHARER; which < COUNT; which++) {
        if (which == GRANDCHILD) continue;
        REQUIRE((children[which] = born(which == SHARER ? CLONE_FS : 0)) >= 0);
        if (children[which] == 0) live(which, self);
        REQUIRE(COMES_TRUE(__atomic_load_n(&shared->is_ready[which], __ATOMIC_SEQ_CST)));
    }
    REQUIRE(COMES_TRUE(__atomic_load_n(&shared->is_ready[GRANDCHILD], __ATOMIC_SEQ_CST)));
    /* This must not affect the child with its own directory. */
    REQUIRE(chdir(directory) == 0);
    umask(027);
}

static void ask(int which) {
    __atomic_store_n(&shared->is_asked[which], 1, __ATOMIC_SEQ_CST);
    REQUIRE(COMES_TRUE(__atomic_load_n(&shared->has_answered[which], __ATOMIC_SEQ_CST)), "process %d", which);
}

static void check(void) {
    char now[PATH_BYTES_MAX];
    REQUIRE(getcwd(now, sizeof now) && strcmp(now, directory) == 0 && mask() == 027, "%s, %o", now, mask());
    ask(GRANDCHILD);
    REQUIRE(strcmp(shared->directory[GRANDCHILD], directory) == 0, "%s", shared->directory[GRANDCHILD]);
    REQUIRE(shared->mask[GRANDCHILD] == 027);
    REQUIRE(getcwd(now, sizeof now) && strcmp(now, "/") == 0 && mask() == 0123, "%s, %o", now, mask());
    ask(SHARER);
    REQUIRE(strcmp(shared->directory[SHARER], "/") == 0 && shared->mask[SHARER] == 0123);
    ask(APART);
    REQUIRE(strcmp(shared->directory[APART], directory) != 0 && strcmp(shared->directory[APART], "/") != 0);
    REQUIRE(shared->mask[APART] != 027 && shared->mask[APART] != 0123);
    for (int which = SHARER; which < COUNT; which++)
        REQUIRE(which == GRANDCHILD || kill(children[which], SIGKILL) == 0);
}
