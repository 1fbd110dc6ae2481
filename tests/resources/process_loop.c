/* A child that forks and waits in a loop, and one that does not wait for its children. At any time of the capture, no
 * child is lost, and none ends twice. */
#include "resource.h"

#define UNWAITED 3

static struct {
    uint32_t stop;
    uint64_t begun, ended, waited;
} *shared;

static pid_t forker, spender;

static __attribute__((noreturn)) void fork_and_wait(void) {
    pid_t root = getppid();
    while (!__atomic_load_n(&shared->stop, __ATOMIC_SEQ_CST) && getppid() == root) {
        int status;
        pid_t pid = fork();
        if (pid < 0) _exit(90);
        if (pid == 0) {
            __atomic_add_fetch(&shared->ended, 1, __ATOMIC_SEQ_CST);
            _exit(3);
        }
        __atomic_add_fetch(&shared->begun, 1, __ATOMIC_SEQ_CST);
        if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 3) _exit(91);
        __atomic_add_fetch(&shared->waited, 1, __ATOMIC_SEQ_CST);
    }
    _exit(shared->begun == shared->ended && shared->begun == shared->waited ? 0 : 92);
}

static __attribute__((noreturn)) void fork_and_leave(void) {
    int status, found = 0;
    for (int i = 0; i < UNWAITED; i++)
        if (fork() == 0) _exit(10 + i);
    pid_t root = getppid();
    while (!__atomic_load_n(&shared->stop, __ATOMIC_SEQ_CST) && getppid() == root) usleep(500);
    for (int i = 0; i < UNWAITED; i++)
        if (wait(&status) > 0 && WIFEXITED(status)) found |= 1 << (WEXITSTATUS(status) - 10);
    _exit(found == (1 << UNWAITED) - 1 ? 0 : 93);
}

static void set_up(void) {
    shared = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(shared != MAP_FAILED && (forker = fork()) >= 0);
    if (forker == 0) fork_and_wait();
    REQUIRE((spender = fork()) >= 0);
    if (spender == 0) fork_and_leave();
    REQUIRE(COMES_TRUE(__atomic_load_n(&shared->waited, __ATOMIC_SEQ_CST) > 10));
}

static void check(void) {
    int status;
    uint64_t before = __atomic_load_n(&shared->waited, __ATOMIC_SEQ_CST);
    REQUIRE(COMES_TRUE(__atomic_load_n(&shared->waited, __ATOMIC_SEQ_CST) > before + 10), "the forks do not continue");
    __atomic_store_n(&shared->stop, 1, __ATOMIC_SEQ_CST);
    REQUIRE(waitpid(forker, &status, 0) == forker && status == 0, "status %#x", status);
    REQUIRE(waitpid(spender, &status, 0) == spender && status == 0, "status %#x", status);
}
