/* A parent with a thread. A child with the payload `N multiply` and all its descendants fork until the kernel refuses.
 * Then the child prints the number of tasks, ends the other processes, and continues.
 *
 * Outside of a container it forks nothing. There are at most BORN_MAX processes, whatever the kernel permits. None
 * outlives the first process: each waits on a pipe whose only write end is open in the first process.
 */
#include "../forked.h"

#include <pthread.h>
#include <sys/wait.h>

/* Maximum number of processes: above each tested limit. */
#define BORN_MAX 1500
/* Longest wait until all processes have stopped forking, in microseconds. */
#define REFUSED_LIMIT_US 60000000ull

struct tally {
    /* Number of forked processes and of forks in progress. */
    int born;
    /* Number of processes that have stopped forking, including the first one; number of forks that failed with EAGAIN;
     * number of forks that failed with another error. */
    int ended, refused, wrong;
};

static void *sleep_on(void *unused) {
    for (;;) pause();
    return unused;
}

static void add(int *count, int more) { __atomic_add_fetch(count, more, __ATOMIC_SEQ_CST); }

/* Forks until fork(2) fails. Returns in the first process and in all forked ones. */
static void fork_on(struct tally *tally, int pipe_ends[2]) {
    /* The fork is counted before it is made. So there are never more than BORN_MAX processes, and no process counts as
     * ended before it was counted. */
    while (__atomic_add_fetch(&tally->born, 1, __ATOMIC_SEQ_CST) <= BORN_MAX) {
        pid_t pid = fork();
        if (pid == 0 && pipe_ends[1] >= 0) close(pipe_ends[1]), pipe_ends[1] = -1;
        if (pid >= 0) continue;
        add(errno == EAGAIN ? &tally->refused : &tally->wrong, 1);
        break;
    }
    add(&tally->born, -1);
    add(&tally->ended, 1);
}

static void multiply(void) {
    struct tally *tally = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int ends[2];
    char byte;
    require_container();
    REQUIRE(tally != MAP_FAILED && pipe(ends) == 0);
    pid_t own = getpid();
    fork_on(tally, ends);
    if (getpid() != own) _exit(read(ends[0], &byte, 1) != 0);
    struct timespec look = {.tv_nsec = 1000000};
    for (uint64_t begun = monotonic_us(); __atomic_load_n(&tally->ended, __ATOMIC_SEQ_CST) < tally->born + 1; nanosleep(&look, NULL))
        REQUIRE(monotonic_us() - begun < REFUSED_LIMIT_US, "%d of %d processes stopped", tally->ended, tally->born + 1);
    REQUIRE(tally->wrong == 0);
    /* The number includes this process and its thread. */
    if (tally->refused > 0) say("refused with EAGAIN at %d", tally->born + 2);
    close(ends[1]);
    while (waitpid(-1, NULL, 0) > 0) continue;
    pid_t again = fork();
    if (again == 0) _exit(0);
    REQUIRE(again > 0 && waitpid(again, NULL, 0) == again);
}

int main(int count, char **arguments) {
    (void)arguments;
    REQUIRE(count == 1, "usage: fork_bomb");
    remember_pid_namespace();
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, sleep_on, NULL) == 0);
    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);
    if (strstr(payload, "multiply") != NULL) multiply();
    finish(payload, 0);
}
