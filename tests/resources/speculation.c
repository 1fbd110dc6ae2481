/* Disabled speculative execution (PR_SET_SPECULATION_CTRL): a thread disables store bypass, and the main thread of another
 * process disables both kinds for ever. On a CPU that is not vulnerable, the calls fail and nothing changes. */
#include "resource.h"

#include <sys/prctl.h>

struct modes {
    int store_bypass, indirect_branch;
};

static pthread_t thread;
static pid_t other;
static struct modes *before; /* of the main thread, the other thread and the other process; shared with the latter */
static int are_set[2], to_thread[2], to_other[2];

static struct modes modes(void) {
    return (struct modes){prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, 0, 0, 0), prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_INDIRECT_BRANCH, 0, 0, 0)};
}

/* Disables a kind of speculation, and requires that the kernel shows it if the thread may choose. */
static void disable(unsigned long kind, unsigned long how) {
    int mode = prctl(PR_GET_SPECULATION_CTRL, kind, 0, 0, 0), result = prctl(PR_SET_SPECULATION_CTRL, kind, how, 0, 0);
    if (mode < 0 || !(mode & PR_SPEC_PRCTL)) return;
    REQUIRE(result == 0 && prctl(PR_GET_SPECULATION_CTRL, kind, 0, 0, 0) == (int)(PR_SPEC_PRCTL | how));
}

/* Stores the thread's modes, and waits for the check. Returns 1 if they are still the same. */
static int note_and_compare(struct modes *noted, int from) {
    char byte;
    *noted = modes();
    REQUIRE(write(are_set[1], "x", 1) == 1 && read(from, &byte, 1) == 1);
    struct modes now = modes();
    return now.store_bypass == noted->store_bypass && now.indirect_branch == noted->indirect_branch;
}

static void *run(void *unused) {
    disable(PR_SPEC_STORE_BYPASS, PR_SPEC_DISABLE);
    return note_and_compare(&before[1], to_thread[0]) ? unused : NULL;
}

static int run_other(void) {
    REQUIRE(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    disable(PR_SPEC_STORE_BYPASS, PR_SPEC_FORCE_DISABLE);
    disable(PR_SPEC_INDIRECT_BRANCH, PR_SPEC_FORCE_DISABLE);
    return note_and_compare(&before[2], to_other[0]);
}

static void set_up(void) {
    char byte;
    before = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(before != MAP_FAILED && pipe(are_set) == 0 && pipe(to_thread) == 0 && pipe(to_other) == 0 && (other = fork()) >= 0);
    if (other == 0) _exit(run_other());
    disable(PR_SPEC_INDIRECT_BRANCH, PR_SPEC_DISABLE);
    before[0] = modes();
    REQUIRE(pthread_create(&thread, NULL, run, &other) == 0);
    for (int i = 0; i < 2; i++) REQUIRE(read(are_set[0], &byte, 1) == 1);
}

static void check(void) {
    void *result;
    int status;
    struct modes now = modes();
    REQUIRE(now.store_bypass == before[0].store_bypass, "store bypass: %#x instead of %#x", now.store_bypass, before[0].store_bypass);
    REQUIRE(now.indirect_branch == before[0].indirect_branch, "indirect branches: %#x instead of %#x", now.indirect_branch, before[0].indirect_branch);
    REQUIRE(write(to_thread[1], "x", 1) == 1 && pthread_join(thread, &result) == 0 && result == &other, "the thread has other modes");
    REQUIRE(write(to_other[1], "x", 1) == 1 && waitpid(other, &status, 0) == other);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 1, "the other process has other modes: %x", status);
}
