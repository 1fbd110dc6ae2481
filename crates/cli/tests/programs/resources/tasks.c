/* Threads as the kernel stores them: ids, names, thread-local storage, scheduling, robust lists, and the futex on which
 * pthread_join(3) waits.
 */
#include "../forked.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#define THREADS_COUNT 12

struct task {
    pthread_t thread;
    unsigned index;
    pid_t tid;
};

static _Thread_local uint64_t own[64];
static atomic_uint started;
static atomic_int go_on;
static pthread_mutex_t robust_mutexes[THREADS_COUNT];

static void name_of(unsigned index, char name[16]) { snprintf(name, 16, "task %u", index); }

/* Threads with an even index are SCHED_BATCH. Each thread has its own nice value. */
static int policy_of(unsigned index) { return index % 2 ? SCHED_OTHER : SCHED_BATCH; }

static void *run(void *argument) {
    struct task *task = (struct task *)argument;
    char name[16], name_now[16];
    name_of(task->index, name);
    task->tid = gettid();
    prctl(PR_SET_NAME, name);
    fill(own, sizeof own, task->index);
    struct sched_param parameters = {0};
    REQUIRE(sched_setscheduler(0, policy_of(task->index), &parameters) == 0);
    REQUIRE(setpriority(PRIO_PROCESS, 0, (int)task->index) == 0);
    pthread_mutex_lock(&robust_mutexes[task->index]);
    atomic_fetch_add(&started, 1);
    while (!atomic_load(&go_on)) usleep(1000);

    REQUIRE(gettid() == task->tid, "thread id %d became %d", task->tid, gettid());
    prctl(PR_GET_NAME, name_now);
    REQUIRE(strcmp(name, name_now) == 0, "name %s", name_now);
    REQUIRE(holds(own, sizeof own, task->index), "thread-local storage");
    REQUIRE(sched_getscheduler(0) == policy_of(task->index), "policy %d", sched_getscheduler(0));
    REQUIRE(getpriority(PRIO_PROCESS, 0) == (int)task->index, "nice value %d", getpriority(PRIO_PROCESS, 0));
    return NULL; /* with its robust mutex held */
}

int main(void) {
    struct task tasks[THREADS_COUNT];
    pthread_mutexattr_t robust;
    pthread_mutexattr_init(&robust);
    pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    for (unsigned i = 0; i < THREADS_COUNT; i++) {
        tasks[i].index = i;
        pthread_mutex_init(&robust_mutexes[i], &robust);
        REQUIRE(pthread_create(&tasks[i].thread, NULL, run, &tasks[i]) == 0);
    }
    while (atomic_load(&started) < THREADS_COUNT) usleep(100);
    pid_t pid = getpid();

    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);

    REQUIRE(getpid() == pid && gettid() == pid, "pid %d became %d", pid, getpid());
    atomic_store(&go_on, 1);
    for (unsigned i = 0; i < THREADS_COUNT; i++) {
        REQUIRE(pthread_join(tasks[i].thread, NULL) == 0);
        REQUIRE(pthread_mutex_lock(&robust_mutexes[i]) == EOWNERDEAD, "robust mutex %u", i);
    }
    finish(payload, 0);
}
