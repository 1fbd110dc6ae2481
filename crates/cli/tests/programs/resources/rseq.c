/* Restartable sequences. glibc's registration must work in the child. A thread that was stopped inside a critical
 * section must continue at its abort handler.
 */
#include "../forked.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/rseq.h>

static atomic_int stop, is_started;
static atomic_ulong aborts;

static struct rseq *own_rseq(void) { return (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset); }

/* Spins in a critical section, except briefly after each abort. */
static void *spin_in_section(void *unused) {
    (void)unused;
    struct rseq *rseq = own_rseq();
    unsigned long count = 0;
    atomic_store(&is_started, 1);
    __asm__ volatile(
        ".pushsection .data.rel, \"aw\"\n .balign 32\n"
        "10: .long 0, 0\n .quad 1f, 2f - 1f, 3f\n .popsection\n"
        "4: leaq 10b(%%rip), %%rax\n movq %%rax, 8(%[rseq])\n"
        "1: pause\n cmpl $0, (%[stop])\n je 1b\n"
        "2: jmp 5f\n"
        ".long 0x53053053\n"
        "3: incq %[count]\n cmpl $0, (%[stop])\n je 4b\n"
        "5: movq $0, 8(%[rseq])\n"
        : [count] "+r"(count)
        : [rseq] "r"(rseq), [stop] "r"(&stop)
        : "memory", "cc", "rax");
    atomic_store(&aborts, count);
    return NULL;
}

/* Checks the registration: the kernel updates the CPU number only of registered threads. */
static void check_registration(void) {
    struct rseq *rseq = own_rseq();
    REQUIRE((int)rseq->cpu_id >= 0, "rseq is not registered: cpu_id %d", (int)rseq->cpu_id);
    rseq->cpu_id = 0xdead;
    for (int i = 0; i < 100 && rseq->cpu_id == 0xdead; i++) usleep(1000);
    REQUIRE(rseq->cpu_id != 0xdead, "the kernel does not write rseq");
}

static void *check_in_thread(void *unused) {
    check_registration();
    return unused;
}

int main(void) {
    REQUIRE(__rseq_size > 0, "glibc has not registered rseq");
    pthread_t spinner, fresh;
    REQUIRE(pthread_create(&spinner, NULL, spin_in_section, NULL) == 0);
    while (!atomic_load(&is_started)) usleep(100);

    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);

    check_registration();
    REQUIRE(pthread_create(&fresh, NULL, check_in_thread, NULL) == 0 && pthread_join(fresh, NULL) == 0);
    usleep(20000);
    atomic_store(&stop, 1);
    REQUIRE(pthread_join(spinner, NULL) == 0);
    REQUIRE(atomic_load(&aborts) > 0, "the critical section was never aborted");
    finish(payload, 0);
}
