// A parent with a thread in every situation that a stop must not disturb. It reports disturbances.
#include "parent.h"

#include <linux/futex.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <time.h>

#define DATA_PAGES 2048

// Number of pages that a tolerant parent excludes from fork(2): every second page from the start of the data.
#define UNFORKED_PLACES 60

static pthread_mutex_t robust, lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;

static void *sleeper(void *unused) {
    struct timespec nap = {0, 20 * 1000 * 1000};
    for (;;)
        if (nanosleep(&nap, NULL)) die("nanosleep");
    return unused;
}

static void *waiter(void *unused) {
    pthread_mutex_lock(&lock);
    for (;;) pthread_cond_wait(&never, &lock);
    return unused;
}

// A futex wait with an alternate stack, blocked signals and a held robust mutex.
static void *holder(void *unused) {
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};
    CHECK(sigaltstack(&stack, NULL));
    tell("altstack", (unsigned long)stack.ss_sp);
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    sigaddset(&blocked, SIGRTMIN + 3);
    pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    pthread_mutex_lock(&robust);
    tell("robust", (unsigned long)&robust);
    int word = 7;
    for (;;) syscall(SYS_futex, &word, FUTEX_WAIT, 7, NULL, NULL, 0);
    return unused;
}

// Registers that never change, vector ones among them.
static uint8_t vector[32] __attribute__((aligned(32)));

static void *spinner(void *unused) {
    for (int i = 0; i < 32; i++) vector[i] = 0xa0 + i;
    asm volatile("vmovdqa %0, %%ymm7\n\t"
                 "mov $0x1111222233334444, %%r15\n\t"
                 "mov $0x5555666677778888, %%r8\n\t"
                 "1: pause\n\t"
                 "jmp 1b" ::"m"(vector)
                 : "r15", "r8");
    return unused;
}

// A restartable sequence that never ends; its abort handler counts and begins it again.
static uint64_t aborts;
extern char sequence_start[], sequence_end[], sequence_abort[];

static void *restarter(void *unused) {
    struct rseq_cs {
        uint32_t version, flags;
        uint64_t start, length, abort;
    } __attribute__((aligned(32)));
    static struct rseq_cs sequence;
    sequence = (struct rseq_cs){0, 0, (uint64_t)sequence_start, sequence_end - sequence_start,
                                (uint64_t)sequence_abort};
    // glibc registers the area itself; its offset from the thread pointer is exported.
    extern const ptrdiff_t __rseq_offset;
    uint64_t *pointer = (uint64_t *)((char *)__builtin_thread_pointer() + __rseq_offset + 8);
    tell("sequence_start", (unsigned long)sequence_start);
    tell("sequence_abort", (unsigned long)sequence_abort);
    asm volatile("jmp 2f\n\t"
                 ".byte 0x0f, 0xb9, 0x3d\n\t" // the signature 0x53053053 before the handler, inside an ud1
                 ".long 0x53053053\n\t"
                 ".globl sequence_abort\n"
                 "sequence_abort:\n\t"
                 "incq %2\n\t"
                 "2: mov %0, %1\n\t"
                 ".globl sequence_start\n"
                 "sequence_start:\n\t"
                 "3: pause\n\t"
                 "jmp 3b\n\t"
                 ".globl sequence_end\n"
                 "sequence_end:\n\t"
                 "nop"
                 :
                 : "r"(&sequence), "m"(*pointer), "m"(aborts)
                 : "memory");
    return unused;
}

int main(int count, char **words) {
    begin();
    int spinning = count > 1 && !strcmp(words[1], "spinning");
    // A tolerant parent accepts EINTR from epoll_wait: a stop whose tracer dies ends the call, and no other process restarts
    // it.
    int tolerant = count > 3;
    // Ballast, in mebibytes, makes a clone slow.
    if (count > 2) memset(malloc(strtoul(words[2], NULL, 10) << 20), 1, strtoul(words[2], NULL, 10) << 20);
    tell("pages", (unsigned long)offer(MAP_PRIVATE, PROT_READ | PROT_EXEC));
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&robust, &attributes);
    uint64_t *data = CHECK(mmap(NULL, DATA_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (uint64_t page = 0; page < DATA_PAGES; page++) data[page * PAGE / 8] = known(page);
    for (int place = 0; tolerant && place < UNFORKED_PLACES; place++)
        CHECK(madvise((char *)data + 2 * place * PAGE, PAGE, MADV_DONTFORK));
    tell("data", (unsigned long)data);

    pthread_t thread;
    start(&thread, "sleeper", sleeper);
    start(&thread, "waiter", waiter);
    start(&thread, "holder", holder);
    if (spinning) {
        start(&thread, "spinner", spinner);
        start(&thread, "restarter", restarter);
    }
    int epoll = CHECK(epoll_create1(0));
    usleep(100 * 1000);
    ready();
    // Each round writes to the data, so that a template must have its own copy.
    for (uint64_t round = 0;; round++) {
        struct epoll_event event;
        if (epoll_wait(epoll, &event, 1, 5) && !(tolerant && errno == EINTR)) die("epoll_wait");
        data[(round % DATA_PAGES) * PAGE / 8 + 1] = round + 1;
        int status;
        if (waitpid(-1, &status, WNOHANG) != -1 || errno != ECHILD) die("waitpid found an unknown child");
        if (round % 20 == 0) tell("round", round);
    }
}
