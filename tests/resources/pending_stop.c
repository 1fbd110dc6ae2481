/* Stopped children with another pending SIGSTOP, for a thread and for the process. SIGCONT discards it. */
#include "resource.h"

#include <sys/prctl.h>

enum { THREAD, PROCESS, COUNT };

static struct {
    uint32_t was_continued[COUNT];
} *shared;

static pid_t pids[COUNT];

static __attribute__((noreturn)) void live(int which, pid_t parent) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(1);
    raise(SIGSTOP);
    __atomic_store_n(&shared->was_continued[which], 1, __ATOMIC_SEQ_CST);
    _exit(5);
}

static char state_of(pid_t pid) {
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return '-';
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    const char *end = strrchr(text, ')');
    return length > 0 && end ? end[2] : '?';
}

static void set_up(void) {
    int status;
    pid_t self = getpid();
    shared = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(shared != MAP_FAILED);
    for (int which = THREAD; which < COUNT; which++) {
        REQUIRE((pids[which] = fork()) >= 0);
        if (pids[which] == 0) live(which, self);
        REQUIRE(waitpid(pids[which], &status, WUNTRACED) == pids[which] && WIFSTOPPED(status));
    }
    REQUIRE(syscall(SYS_tgkill, pids[THREAD], pids[THREAD], SIGSTOP) == 0);
    REQUIRE(kill(pids[PROCESS], SIGSTOP) == 0);
}

static void check(void) {
    int status;
    for (int which = THREAD; which < COUNT; which++) {
        REQUIRE(COMES_TRUE(state_of(pids[which]) == 'T'), "state %c", state_of(pids[which]));
        REQUIRE(!shared->was_continued[which] && kill(pids[which], SIGCONT) == 0);
        REQUIRE(waitpid(pids[which], &status, 0) == pids[which] && WIFEXITED(status) && WEXITSTATUS(status) == 5);
        REQUIRE(shared->was_continued[which]);
    }
}
