/* Processes that share their descriptor tables with their parents (clone(2), CLONE_FILES): a child and its child, and a
 * stopped child. Another child has its own table, which its child shares. A file that one process opens, closes or
 * locks changes for all that share the table. */
#include "resource.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

#define DESCRIPTORS_MAX 4096
#define PAYLOAD 1000 /* descriptor at which a child finds its payload */
#define HIGH 900     /* descriptor of the child that has its own table */

enum { ROOT, SHARER, GRANDCHILD, APART, APARTS_CHILD, STOPPED, COUNT };

static struct {
    uint32_t is_ready[COUNT], is_asked[COUNT], has_answered[COUNT];
    int counted[COUNT], opened, apart_opened, is_like_before[COUNT];
    pid_t pids[COUNT];
} *shared;

static int file, counter, ends[2];

static pid_t born(int flags) { return (pid_t)syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0); }

/* Returns the number of open descriptors, without the payload. */
static int count(void) {
    int found = 0;
    for (int number = 0; number < DESCRIPTORS_MAX; number++)
        found += number != PAYLOAD && fcntl(number, F_GETFD) >= 0;
    return found;
}

static int set_score(const char *score) {
    int own = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    int is_set = own >= 0 && write(own, score, strlen(score)) == (ssize_t)strlen(score);
    return close(own) == 0 && is_set;
}

static int has_score(int wanted) {
    char text[16] = "";
    int own = open("/proc/self/oom_score_adj", O_RDONLY | O_CLOEXEC);
    int is_read = own >= 0 && read(own, text, sizeof text - 1) > 0;
    return close(own) == 0 && is_read && atoi(text) == wanted;
}

/* Locks a range of the file (F_SETLK), or tests whether processes with another table have locked it (F_GETLK). */
static int lock(int command) {
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 2, .l_len = 3};
    return fcntl(file, command, &range) == 0 && range.l_type == F_WRLCK;
}

/* Checks the files in a process. The cases are in the order of the requests. Returns whether all is as expected. */
static int look(int which) {
    uint64_t value;
    char byte;
    switch (which) {
    case GRANDCHILD:
        if (lseek(file, 0, SEEK_CUR) != 5 || fcntl(file, F_GETFD) != FD_CLOEXEC || fcntl(ends[0], F_GETFD) != 0) return 0;
        if (read(counter, &value, sizeof value) != sizeof value || value != 7) return 0;
        shared->opened = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (read(ends[0], &byte, 1) != 1 || byte != 'p' || close(ends[0]) != 0) return 0;
        return shared->opened >= 0 && lseek(file, 9, SEEK_SET) == 9;
    case SHARER:
        return fcntl(shared->opened, F_GETFD) == FD_CLOEXEC && lseek(file, 0, SEEK_CUR) == 9 && has_score(1000) && !lock(F_GETLK);
    case APART:
        if (fcntl(shared->opened, F_GETFD) != -1 || fcntl(ends[0], F_GETFD) != 0) return 0;
        shared->apart_opened = dup(HIGH);
        return shared->apart_opened >= 0 && lseek(file, 0, SEEK_CUR) == 9 && lock(F_GETLK);
    case STOPPED: return fcntl(shared->opened, F_GETFD) == FD_CLOEXEC;
    case APARTS_CHILD: return fcntl(shared->apart_opened, F_GETFD) == 0 && close(shared->apart_opened) == 0;
    default: return 0;
    }
}

static __attribute__((noreturn)) void live(int which, pid_t parent) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(1);
    if (which == SHARER && !(set_score("1000") && lock(F_SETLK))) _exit(2);
    if (which == APART && dup2(counter, HIGH) != HIGH) _exit(3);
    if (which == SHARER || which == APART) {
        pid_t self = getpid(), child = born(CLONE_FILES);
        if (child < 0) _exit(4);
        if (child == 0) live(which + 1, self);
    }
    shared->pids[which] = getpid();
    __atomic_store_n(&shared->is_ready[which], 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&shared->is_asked[which], __ATOMIC_SEQ_CST)) usleep(1000);
    shared->counted[which] = count();
    shared->is_like_before[which] = look(which);
    __atomic_store_n(&shared->has_answered[which], 1, __ATOMIC_SEQ_CST);
    for (;;) pause();
}

static int before;

static void set_up(void) {
    shared = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(shared != MAP_FAILED);
    int status;
    pid_t self = getpid();
    REQUIRE((file = open(path_of("file"), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) >= 0);
    REQUIRE(write(file, "0123456789", 10) == 10);
    REQUIRE((counter = eventfd(0, EFD_NONBLOCK)) >= 0);
    REQUIRE(pipe(ends) == 0 && write(ends[1], "p", 1) == 1);
    for (int which = SHARER; which < COUNT; which += 2) {
        pid_t child = born(which == APART ? 0 : CLONE_FILES);
        REQUIRE(child >= 0);
        if (child == 0) live(which, self);
        /* The next child must not inherit a file that this one has open for a moment. */
        REQUIRE(COMES_TRUE(__atomic_load_n(&shared->is_ready[which], __ATOMIC_SEQ_CST)), "process %d", which);
    }
    for (int which = SHARER; which < COUNT; which++)
        REQUIRE(COMES_TRUE(__atomic_load_n(&shared->is_ready[which], __ATOMIC_SEQ_CST)), "process %d", which);
    REQUIRE(kill(shared->pids[STOPPED], SIGSTOP) == 0);
    REQUIRE(waitpid(shared->pids[STOPPED], &status, WUNTRACED) == shared->pids[STOPPED] && WIFSTOPPED(status));
    uint64_t value = 7;
    REQUIRE(write(counter, &value, sizeof value) == sizeof value);
    /* The offset also changes for processes that were forked before. */
    REQUIRE(lseek(file, 5, SEEK_SET) == 5);
    before = count();
}

static void ask(int which) {
    __atomic_store_n(&shared->is_asked[which], 1, __ATOMIC_SEQ_CST);
    REQUIRE(COMES_TRUE(__atomic_load_n(&shared->has_answered[which], __ATOMIC_SEQ_CST)), "process %d", which);
    REQUIRE(shared->is_like_before[which], "process %d", which);
}

static void check(void) {
    REQUIRE(count() == before, "%d, not %d", count(), before);
    ask(GRANDCHILD);
    REQUIRE(shared->counted[GRANDCHILD] == before, "%d, not %d", shared->counted[GRANDCHILD], before);
    REQUIRE(fcntl(shared->opened, F_GETFD) == FD_CLOEXEC && count() == before);
    REQUIRE(fcntl(ends[0], F_GETFD) == -1 && errno == EBADF && lseek(file, 0, SEEK_CUR) == 9);
    ask(SHARER);
    ask(APART);
    REQUIRE(shared->counted[APART] == before + 1, "%d, not %d", shared->counted[APART], before + 1);
    ask(APARTS_CHILD);
    REQUIRE(shared->counted[APARTS_CHILD] == before + 2, "%d", shared->counted[APARTS_CHILD]);
    __atomic_store_n(&shared->is_asked[STOPPED], 1, __ATOMIC_SEQ_CST);
    usleep(10000);
    REQUIRE(!shared->has_answered[STOPPED] && kill(shared->pids[STOPPED], SIGCONT) == 0);
    ask(STOPPED);
    REQUIRE(kill(shared->pids[STOPPED], SIGKILL) == 0 && kill(shared->pids[SHARER], SIGKILL) == 0 && kill(shared->pids[APART], SIGKILL) == 0);
}
