/* Processes that execute programs in a loop: two that replace themselves, one with children that do so once, and one
 * that waits for such children in vfork(2). At any time of the capture, no program is lost, and none starts twice. */
#include "resource.h"

#include <spawn.h>

#define RUNNERS 2
#define STARTERS 2
#define SHARED_FD 90

static struct {
    uint32_t stop;
    uint64_t begun[RUNNERS], done[STARTERS];
} *shared;

static pid_t runners[RUNNERS], starters[STARTERS];

static void begin(const char *role, int runner, uint64_t turn, pid_t root) {
    char words[3][24];
    snprintf(words[0], sizeof words[0], "%d", runner);
    snprintf(words[1], sizeof words[1], "%llu", (unsigned long long)turn);
    snprintf(words[2], sizeof words[2], "%d", root);
    execl("/proc/self/exe", "program_loop", role, words[0], words[1], words[2], NULL);
    _exit(90);
}

static int goes_on(pid_t root) {
    return !__atomic_load_n(&shared->stop, __ATOMIC_SEQ_CST) && getppid() == root;
}

static void map_shared(void) {
    shared = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, SHARED_FD, 0);
    if (shared == MAP_FAILED) _exit(91);
}

/* Runs before main. In a program that a loop has started (with arguments), counts it, starts the next one, and ends. */
__attribute__((constructor)) static void be_one_of_many(int count, char **arguments) {
    if (count < 5) return;
    int runner = atoi(arguments[2]);
    uint64_t turn = strtoull(arguments[3], NULL, 10);
    pid_t root = atoi(arguments[4]);
    map_shared();
    if (strcmp(arguments[1], "once") == 0) _exit(3);
    if (__atomic_load_n(&shared->begun[runner], __ATOMIC_SEQ_CST) != turn) _exit(92);
    __atomic_store_n(&shared->begun[runner], turn + 1, __ATOMIC_SEQ_CST);
    if (goes_on(root)) begin("again", runner, turn + 1, root);
    _exit(0);
}

static pid_t start(int by_vfork, pid_t root) {
    extern char **environ;
    pid_t pid;
    if (by_vfork) {
        char *words[] = {"program_loop", "once", "0", "0", "0", NULL};
        return posix_spawn(&pid, "/proc/self/exe", NULL, NULL, words, environ) == 0 ? pid : -1;
    }
    pid = fork();
    if (pid == 0) begin("once", 0, 0, root);
    return pid;
}

static __attribute__((noreturn)) void start_and_wait(int starter, pid_t root) {
    while (goes_on(root)) {
        int status;
        pid_t pid = start(starter, root);
        if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 3) _exit(93);
        __atomic_add_fetch(&shared->done[starter], 1, __ATOMIC_SEQ_CST);
    }
    _exit(0);
}

/* Returns whether each loop has begun or done more than `more` programs since the counts `begun` and `done`. */
static int all_beyond(const uint64_t *begun, const uint64_t *done, uint64_t more) {
    int all = 1;
    for (int i = 0; i < RUNNERS; i++) all &= __atomic_load_n(&shared->begun[i], __ATOMIC_SEQ_CST) > begun[i] + more;
    for (int i = 0; i < STARTERS; i++) all &= __atomic_load_n(&shared->done[i], __ATOMIC_SEQ_CST) > done[i] + more;
    return all;
}

static void set_up(void) {
    pid_t root = getpid();
    int fd = memfd_create("counts", 0);
    REQUIRE(fd >= 0 && ftruncate(fd, PAGE_BYTES) == 0 && dup2(fd, SHARED_FD) == SHARED_FD && close(fd) == 0);
    map_shared();
    for (int i = 0; i < RUNNERS; i++) {
        REQUIRE((runners[i] = fork()) >= 0);
        if (runners[i] == 0) begin("again", i, 0, root);
    }
    for (int i = 0; i < STARTERS; i++) {
        REQUIRE((starters[i] = fork()) >= 0);
        if (starters[i] == 0) start_and_wait(i, root);
    }
    REQUIRE(COMES_TRUE(all_beyond((uint64_t[RUNNERS]){0}, (uint64_t[STARTERS]){0}, 10)));
}

static void require_well_ended(pid_t pid) {
    int status;
    REQUIRE(waitpid(pid, &status, 0) == pid && status == 0, "status %#x", status);
}

static void check(void) {
    uint64_t begun[RUNNERS], done[STARTERS];
    memcpy(begun, shared->begun, sizeof begun), memcpy(done, shared->done, sizeof done);
    REQUIRE(COMES_TRUE(all_beyond(begun, done, 10)), "a loop does not continue");
    __atomic_store_n(&shared->stop, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < RUNNERS; i++) require_well_ended(runners[i]);
    for (int i = 0; i < STARTERS; i++) require_well_ended(starters[i]);
}
