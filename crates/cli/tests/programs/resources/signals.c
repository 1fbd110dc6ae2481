/* Signals: the mask of each thread, dispositions, pending signals of the process and of a thread with their values, and
 * an alternate stack on which a handler runs in the child.
 */
#include "../forked.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#define STACK_BYTES 65536UL
#define PROCESS_VALUE 1234
#define THREAD_VALUE 5678

static char *stack;
static volatile sig_atomic_t process_value, thread_value, was_on_stack, usr1_count;
static atomic_int stage;

static void take_value(int signal, siginfo_t *info, void *context) {
    (void)context;
    if (signal == SIGRTMIN + 1) process_value = info->si_value.sival_int;
    if (signal == SIGRTMIN + 2) thread_value = info->si_value.sival_int;
}

static void note_stack(int signal, siginfo_t *info, void *context) {
    char here;
    (void)signal, (void)info, (void)context;
    was_on_stack = &here >= stack && &here < stack + STACK_BYTES;
}

static void count_usr1(int signal) {
    (void)signal;
    usr1_count++;
}

static void set_handlers(void) {
    struct sigaction queued = {.sa_sigaction = take_value, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaddset(&queued.sa_mask, SIGQUIT);
    REQUIRE(sigaction(SIGRTMIN + 1, &queued, NULL) == 0 && sigaction(SIGRTMIN + 2, &queued, NULL) == 0);
    struct sigaction stacked = {.sa_sigaction = note_stack, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    REQUIRE(sigaction(SIGUSR2, &stacked, NULL) == 0);
    struct sigaction once = {.sa_handler = count_usr1, .sa_flags = (int)SA_RESETHAND};
    REQUIRE(sigaction(SIGUSR1, &once, NULL) == 0);
    REQUIRE(signal(SIGHUP, SIG_IGN) != SIG_ERR);
}

static void set_stack(void) {
    stack = (char *)map_anonymous(STACK_BYTES);
    stack_t alternate = {.ss_sp = stack, .ss_size = STACK_BYTES};
    REQUIRE(sigaltstack(&alternate, NULL) == 0);
}

static void block(int how, int signal) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    pthread_sigmask(how, &set, NULL);
}

static int is_pending(int signal) {
    sigset_t set;
    sigpending(&set);
    return sigismember(&set, signal);
}

/* A thread with its own mask, and with a pending signal for this thread alone. */
static void *own_signals(void *unused) {
    (void)unused;
    block(SIG_BLOCK, SIGRTMIN + 2);
    siginfo_t info = {.si_signo = SIGRTMIN + 2, .si_code = SI_QUEUE, .si_value = {.sival_int = THREAD_VALUE}};
    info.si_pid = getpid();
    REQUIRE(syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), SIGRTMIN + 2, &info) == 0);
    atomic_store(&stage, 1);
    while (atomic_load(&stage) < 2) usleep(1000);
    REQUIRE(is_pending(SIGRTMIN + 2), "the thread's signal is lost");
    block(SIG_UNBLOCK, SIGRTMIN + 2);
    REQUIRE(thread_value == THREAD_VALUE, "value %d", (int)thread_value);
    return NULL;
}

static void check_dispositions(void) {
    struct sigaction now;
    sigaction(SIGRTMIN + 1, NULL, &now);
    REQUIRE(now.sa_sigaction == take_value && sigismember(&now.sa_mask, SIGQUIT) && !sigismember(&now.sa_mask, SIGTERM));
    REQUIRE((now.sa_flags & (SA_SIGINFO | SA_RESTART | SA_ONSTACK)) == (SA_SIGINFO | SA_RESTART));
    sigaction(SIGHUP, NULL, &now);
    REQUIRE(now.sa_handler == SIG_IGN);
    sigaction(SIGALRM, NULL, &now);
    REQUIRE(now.sa_handler == SIG_DFL);
    raise(SIGHUP);
    raise(SIGUSR1);
    sigaction(SIGUSR1, NULL, &now);
    REQUIRE(usr1_count == 1 && now.sa_handler == SIG_DFL, "SA_RESETHAND");
}

static void check_process_signal(void) {
    REQUIRE(is_pending(SIGRTMIN + 1), "the process's signal is lost");
    REQUIRE(is_pending(SIGINT) && process_value == 0);
    block(SIG_UNBLOCK, SIGRTMIN + 1);
    REQUIRE(process_value == PROCESS_VALUE, "value %d", (int)process_value);
}

int main(void) {
    set_stack();
    set_handlers();
    block(SIG_BLOCK, SIGRTMIN + 1);
    block(SIG_BLOCK, SIGINT);
    REQUIRE(sigqueue(getpid(), SIGRTMIN + 1, (union sigval){.sival_int = PROCESS_VALUE}) == 0);
    kill(getpid(), SIGINT);
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, own_signals, NULL) == 0);
    while (atomic_load(&stage) < 1) usleep(100);

    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);

    atomic_store(&stage, 2);
    REQUIRE(pthread_join(thread, NULL) == 0);
    check_process_signal();
    check_dispositions();
    raise(SIGUSR2);
    REQUIRE(was_on_stack, "the handler did not run on its alternate stack");
    finish(payload, 0);
}
