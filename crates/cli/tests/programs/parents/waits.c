/* A parent in C, linked statically, with three waiting threads: in a relative sleep, in a condition variable, and in a
 * futex wait with a robust mutex held. The main thread waits in epoll_wait(2). With `spin`, a fourth thread spins and
 * keeps its registers.
 * usage: waits [MIB [spin]]
 */
#include "../forked.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t robust_mutex;
static int is_awake;
static atomic_int stop;
static atomic_int futex_word;
static atomic_uint started;
static _Thread_local uint64_t own = 0x5eed;

/* Sleeps repeatedly. The sleep that the fork interrupts is restarted, and must not fail. */
static void *sleep_in_a_loop(void *unused) {
    (void)unused;
    own = word_of(1);
    atomic_fetch_add(&started, 1);
    while (!stop) {
        struct timespec pause = {.tv_sec = 0, .tv_nsec = 5000000};
        REQUIRE(nanosleep(&pause, NULL) == 0, "the fork interrupted a sleep");
    }
    REQUIRE(own == word_of(1));
    return NULL;
}

static void *wait_for_condition(void *unused) {
    (void)unused;
    own = word_of(2);
    pthread_mutex_lock(&mutex);
    atomic_fetch_add(&started, 1);
    while (!is_awake) pthread_cond_wait(&condition, &mutex);
    pthread_mutex_unlock(&mutex);
    REQUIRE(own == word_of(2));
    return NULL;
}

/* Ends with the mutex held. The kernel must then find the thread's robust list. */
static void *hold_robust_mutex(void *unused) {
    (void)unused;
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &mask, NULL);
    pthread_mutex_lock(&robust_mutex);
    atomic_fetch_add(&started, 1);
    while (!futex_word) {
        long woken = syscall(SYS_futex, &futex_word, FUTEX_WAIT, 0, NULL, NULL, 0);
        REQUIRE(woken == 0 || errno == EAGAIN, "the fork interrupted a futex wait");
    }
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    REQUIRE(sigismember(&now, SIGUSR2) && !sigismember(&now, SIGUSR1));
    return NULL;
}

/* Runs with known values in the sixteen SSE registers and in a callee-saved register. */
static void *keep_registers(void *unused) {
    (void)unused;
    uint64_t put[32], got[32];
    fill(put, sizeof put, 1000);
    atomic_fetch_add(&started, 1);
    __asm__ volatile(
        ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n movups \\n*16(%[put]), %%xmm\\n\n .endr\n"
        "movq $0x1234567, %%r15\n"
        WAIT_FOR_STOP
        ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n movups %%xmm\\n, \\n*16(%[got])\n .endr\n"
        "cmpq $0x1234567, %%r15\n je 2f\n ud2\n 2:\n"
        :
        : [put] "r"(put), [got] "r"(got), WAIT_INPUTS
        : WAIT_CLOBBERS, "r15", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
          "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
    REQUIRE(memcmp(put, got, sizeof put) == 0, "vector registers changed");
    return NULL;
}

static unsigned start(pthread_t threads[4], int with_spinner) {
    pthread_mutexattr_t robust;
    pthread_mutexattr_init(&robust);
    pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&robust_mutex, &robust);
    void *(*const bodies[])(void *) = {sleep_in_a_loop, wait_for_condition, hold_robust_mutex, keep_registers};
    unsigned count = with_spinner ? 4 : 3;
    for (unsigned i = 0; i < count; i++) REQUIRE(pthread_create(&threads[i], NULL, bodies[i], NULL) == 0);
    while (atomic_load(&started) < count) usleep(100);
    return count;
}

/* Prints ticks and waits in epoll_wait(2) until a payload appears. The fork must not cause EINTR. */
static void await_in_epoll(char payload[PAYLOAD_BYTES_MAX]) {
    int quiet = eventfd(0, EFD_CLOEXEC);
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data = {.u64 = word_of(3)}};
    REQUIRE(epoll_ctl(epoll, EPOLL_CTL_ADD, quiet, &event) == 0);
    while (!find_payload(payload)) {
        say("tick %llu", (unsigned long long)monotonic_us());
        REQUIRE(epoll_wait(epoll, &event, 1, 2) == 0, "the fork interrupted epoll_wait");
    }
    uint64_t one = 1;
    REQUIRE(write(quiet, &one, sizeof one) == sizeof one);
    REQUIRE(epoll_wait(epoll, &event, 1, 1000) == 1 && event.data.u64 == word_of(3), "epoll does not report its target");
}

static void stop_and_join(pthread_t threads[4], unsigned count) {
    atomic_store(&stop, 1);
    pthread_mutex_lock(&mutex);
    is_awake = 1;
    pthread_cond_broadcast(&condition);
    pthread_mutex_unlock(&mutex);
    atomic_store(&futex_word, 1);
    syscall(SYS_futex, &futex_word, FUTEX_WAKE, 1, NULL, NULL, 0);
    for (unsigned i = 0; i < count; i++) REQUIRE(pthread_join(threads[i], NULL) == 0);
    REQUIRE(pthread_mutex_lock(&robust_mutex) == EOWNERDEAD, "the kernel did not release the robust mutex");
}

int main(int count, char **arguments) {
    size_t bytes = (count > 1 ? strtoul(arguments[1], NULL, 10) : 16) << 20;
    uint64_t *memory = (uint64_t *)map_anonymous(bytes);
    fill(memory, bytes, 0);
    uint64_t hash = hash_of(memory, bytes);
    pthread_t threads[4];
    unsigned threads_count = start(threads, count > 2);

    char payload[PAYLOAD_BYTES_MAX];
    ready(hash);
    await_in_epoll(payload);

    stop_and_join(threads, threads_count);
    finish(payload, hash_of(memory, bytes));
}
