/* Processes that share their parent's address space (clone(2), CLONE_VM). One shares only the address space, and has
 * its own session, a thread and a child. One shares everything possible, including signal handlers. One is stopped.
 * Another child has its own memory and shares it with its child. Writes, maps, moves and unmaps apply to all that
 * share, including missing pages.
 *
 * The processes share thread-local storage, so none uses errno while others run. */
#include "resource.h"

#include <sched.h>
#include <sys/prctl.h>

#define STACK_BYTES 65536
#define AREA_PAGES 256UL
#define WORDS (PAGE_BYTES / sizeof(uint64_t))

enum { ROOT, SHARER, GRANDCHILD, ALL, STOPPED, APART, APARTS_CHILD, COUNT };
enum { LOOK, END };

static uint32_t has_handled;

/* In shared memory, because some processes have their own address space. */
static struct {
    uint32_t is_ready[COUNT], asked[COUNT], answered[COUNT], is_like_before[COUNT], has_ended, ticks;
    pid_t pids[COUNT], thread;
} *shared;

static char stacks[COUNT + 1][STACK_BYTES] __attribute__((aligned(16)));
static volatile uint64_t *area, *moved, *gone;
static int file;
static pid_t thread;

static uint64_t word_of(unsigned long page) { return page * 0x9e3779b97f4a7c15ULL + 1; }

static volatile uint64_t *map(unsigned long pages) {
    return mmap(NULL, pages * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static int is_whole(volatile const uint64_t *pages, unsigned long first, unsigned long end) {
    for (unsigned long page = first; page < end; page++)
        if (pages[page * WORDS] != word_of(page)) return 0;
    return 1;
}

static void on_signal(int signal) {
    (void)signal;
    __atomic_add_fetch(&has_handled, 1, __ATOMIC_SEQ_CST);
}

static void on_own_signal(int signal) {
    (void)signal;
    __atomic_add_fetch(&has_handled, 100, __ATOMIC_SEQ_CST);
}

/* Sleeps for a millisecond. Ends the process if the root process has ended. */
static void rest(void) {
    struct timespec interval = {0, 1000000};
    syscall(SYS_nanosleep, &interval, NULL);
    if (syscall(SYS_kill, shared->pids[ROOT], 0) != 0) syscall(SYS_exit_group, 1);
}

/* A thread of SHARER: it counts its turns, and stores its thread id. */
static __attribute__((noreturn)) int tick(void *unused) {
    (void)unused;
    for (;;) {
        __atomic_store_n(&shared->thread, (pid_t)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
        __atomic_add_fetch(&shared->ticks, 1, __ATOMIC_SEQ_CST);
        rest();
    }
}

/* Returns whether a process that a sharer forks has its own copy of the memory. */
static int forks(void) {
    int status;
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        int is_like_before = is_whole(area, 96, 128);
        area[96 * WORDS] = 0;
        syscall(SYS_exit_group, is_like_before ? 33 : 1);
    }
    return child > 0 && syscall(SYS_wait4, child, &status, 0, NULL) == child && WIFEXITED(status) &&
           WEXITSTATUS(status) == 33 && area[96 * WORDS] == word_of(96);
}

/* Checks the memory in a process. Returns whether all is as expected. */
static int look(int which) {
    uint32_t ticks;
    switch (which) {
    case SHARER:
        if (!is_whole(area, 0, 32) || area[40 * WORDS] != 7) return 0;
        area[41 * WORDS] = 8;
        moved = mremap((void *)(area + 192 * WORDS), 16 * PAGE_BYTES, 16 * PAGE_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)moved);
        if (moved == MAP_FAILED || munmap((void *)(area + 224 * WORDS), 16 * PAGE_BYTES) != 0) return 0;
        gone = map(4);
        gone[0] = 9;
        ticks = __atomic_load_n(&shared->ticks, __ATOMIC_SEQ_CST);
        for (int turn = 0; turn < PATIENCE_MS && __atomic_load_n(&shared->ticks, __ATOMIC_SEQ_CST) == ticks; turn++) rest();
        if (__atomic_load_n(&shared->ticks, __ATOMIC_SEQ_CST) == ticks || shared->thread != thread) return 0;
        syscall(SYS_kill, getpid(), SIGUSR1);
        return forks() && getsid(0) == getpid() && lseek(file, 0, SEEK_CUR) == 5;
    case GRANDCHILD: return is_whole(area, 128, 160) && getppid() == shared->pids[SHARER] && getsid(0) == getppid();
    case ALL:
        syscall(SYS_kill, getpid(), SIGUSR1);
        return is_whole(area, 160, 192) && close(file) == 0 && umask(022) == 026;
    case STOPPED: return area[41 * WORDS] == 8;
    case APART: return is_whole(area, 0, 64);
    case APARTS_CHILD:
        /* Asked twice: while its parent runs, and when no other process has the memory. */
        if (!shared->has_ended) return is_whole(area, 64, 128) && getppid() == shared->pids[APART];
        return is_whole(area, 0, AREA_PAGES) && getppid() != shared->pids[APART];
    default: return 0;
    }
}

static __attribute__((noreturn)) int live(void *given);

static void bear(int which, int flags) {
    static int numbers[COUNT] = {ROOT, SHARER, GRANDCHILD, ALL, STOPPED, APART, APARTS_CHILD};
    clone(live, stacks[which] + STACK_BYTES, flags | SIGCHLD, &numbers[which]);
}

static void await(const uint32_t *word) {
    while (!__atomic_load_n(word, __ATOMIC_SEQ_CST)) rest();
}

static __attribute__((noreturn)) int live(void *given) {
    int which = *(int *)given;
    shared->pids[which] = (pid_t)syscall(SYS_getpid);
    if (which != APARTS_CHILD) syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
    if (which == SHARER) {
        struct sigaction own = {.sa_handler = on_own_signal};
        sigaction(SIGUSR1, &own, NULL);
        setsid();
        bear(GRANDCHILD, CLONE_VM);
        await(&shared->is_ready[GRANDCHILD]);
        int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD;
        clone(tick, stacks[COUNT] + STACK_BYTES, flags, NULL);
        await(&shared->ticks);
        thread = shared->thread;
    }
    if (which == APART) bear(APARTS_CHILD, CLONE_VM);
    __atomic_store_n(&shared->is_ready[which], 1, __ATOMIC_SEQ_CST);
    for (;;) {
        await(&shared->asked[which]);
        if (shared->asked[which] == END + 1) syscall(SYS_exit_group, 20 + which);
        __atomic_store_n(&shared->asked[which], 0, __ATOMIC_SEQ_CST);
        shared->is_like_before[which] = (uint32_t)look(which);
        __atomic_store_n(&shared->answered[which], 1, __ATOMIC_SEQ_CST);
    }
}

static void set_up(void) {
    int status;
    shared = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(shared != MAP_FAILED && (shared->pids[ROOT] = getpid()) > 0 && (area = map(AREA_PAGES)) != MAP_FAILED && (moved = map(16)) != MAP_FAILED);
    for (unsigned long page = 0; page < AREA_PAGES; page++) area[page * WORDS] = word_of(page);
    REQUIRE((file = open(path_of("file"), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) >= 0 && write(file, "01234", 5) == 5);
    struct sigaction action = {.sa_handler = on_signal};
    REQUIRE(sigaction(SIGUSR1, &action, NULL) == 0);
    bear(SHARER, CLONE_VM);
    bear(ALL, CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND);
    bear(STOPPED, CLONE_VM);
    bear(APART, 0);
    for (int which = SHARER; which < COUNT; which++)
        REQUIRE(COMES_TRUE(__atomic_load_n(&shared->is_ready[which], __ATOMIC_SEQ_CST)), "process %d", which);
    REQUIRE(kill(shared->pids[STOPPED], SIGSTOP) == 0);
    REQUIRE(waitpid(shared->pids[STOPPED], &status, WUNTRACED) == shared->pids[STOPPED] && WIFSTOPPED(status));
    umask(026);
}

static void ask(int which) {
    __atomic_store_n(&shared->answered[which], 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&shared->asked[which], LOOK + 1, __ATOMIC_SEQ_CST);
    REQUIRE(COMES_TRUE(__atomic_load_n(&shared->answered[which], __ATOMIC_SEQ_CST)), "process %d", which);
    REQUIRE(shared->is_like_before[which], "process %d", which);
}

static void end(int which) {
    int status;
    __atomic_store_n(&shared->asked[which], END + 1, __ATOMIC_SEQ_CST);
    REQUIRE(waitpid(shared->pids[which], &status, 0) == shared->pids[which] && WIFEXITED(status), "process %d", which);
    REQUIRE(WEXITSTATUS(status) == 20 + which, "process %d: %d", which, WEXITSTATUS(status));
}

static void check(void) {
    area[40 * WORDS] = 7;
    ask(SHARER);
    /* The sharer has changed the memory while most pages were missing. */
    REQUIRE(area[41 * WORDS] == 8 && gone[0] == 9 && has_handled == 100, "%u", has_handled);
    for (unsigned long page = 192; page < 208; page++) REQUIRE(moved[(page - 192) * WORDS] == word_of(page), "page %lu", page);
    REQUIRE(msync((void *)(area + 192 * WORDS), PAGE_BYTES, MS_ASYNC) == -1 && errno == ENOMEM);
    REQUIRE(msync((void *)(area + 224 * WORDS), PAGE_BYTES, MS_ASYNC) == -1 && errno == ENOMEM);
    REQUIRE(is_whole(area, 208, 224) && is_whole(area, 240, AREA_PAGES));
    ask(GRANDCHILD);
    ask(ALL);
    REQUIRE(has_handled == 101 && fcntl(file, F_GETFD) == -1 && errno == EBADF && umask(022) == 022, "%u", has_handled);
    shared->asked[STOPPED] = LOOK + 1;
    usleep(10000);
    REQUIRE(!shared->answered[STOPPED] && kill(shared->pids[STOPPED], SIGCONT) == 0);
    ask(STOPPED);
    ask(APARTS_CHILD);
    ask(APART);
    end(STOPPED);
    end(ALL);
    REQUIRE(kill(shared->pids[GRANDCHILD], SIGKILL) == 0);
    end(SHARER);
    end(APART);
    shared->has_ended = 1;
    ask(APARTS_CHILD);
    REQUIRE(kill(shared->pids[APARTS_CHILD], SIGKILL) == 0);
    REQUIRE(is_whole(area, 42, 192));
}
