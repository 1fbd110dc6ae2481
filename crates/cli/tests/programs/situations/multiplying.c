/* A parent with a thread, whose child, told `N multiply`, forks as often as it can, as do all that it forks, until the kernel refuses. It
 * says how many tasks there were, ends the others, and goes on.
 */
#include "../forked.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

/* Nobody limits it: enough. */
#define BORN_MAX 4000
#define SETTLED_MS 300

struct tally {
    int born, refused, wrong;
};

static void *sleep_on(void *unused) {
    for (;;) pause();
    return unused;
}

/* Returns in each process. */
static void fork_on(struct tally *tally) {
    while (__atomic_load_n(&tally->born, __ATOMIC_SEQ_CST) < BORN_MAX) {
        pid_t pid = fork();
        if (pid > 0) continue;
        if (pid == 0) {
            __atomic_add_fetch(&tally->born, 1, __ATOMIC_SEQ_CST);
            continue;
        }
        __atomic_add_fetch(errno == EAGAIN ? &tally->refused : &tally->wrong, 1, __ATOMIC_SEQ_CST);
        return;
    }
}

static void multiply(void) {
    struct tally *tally = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(tally != MAP_FAILED);
    pid_t own = getpid();
    fork_on(tally);
    if (getpid() != own)
        for (;;) pause();
    /* Until those that were born last have been refused, too. */
    struct timespec moment = {.tv_sec = 0, .tv_nsec = SETTLED_MS * 1000000L};
    for (int before = -1; before != tally->refused;) {
        before = tally->refused;
        nanosleep(&moment, NULL);
    }
    REQUIRE(tally->wrong == 0);
    REQUIRE(kill(-1, SIGKILL) == 0);
    while (waitpid(-1, NULL, 0) > 0) {
    }
    /* With itself and its thread. */
    if (tally->refused > 0) say("refused with EAGAIN at %d", tally->born + 2);
    pid_t again = fork();
    if (again == 0) _exit(0);
    REQUIRE(again > 0 && waitpid(again, NULL, 0) == again);
}

int main(int count, char **arguments) {
    (void)arguments;
    REQUIRE(count == 1, "usage: multiplying");
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, sleep_on, NULL) == 0);
    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);
    if (strstr(payload, "multiply") != NULL) multiply();
    finish(payload, 0);
}
