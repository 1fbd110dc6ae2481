/* A parent that cannot be prepared, for one reason, and continues to run.
 * usage: refused socket|sealed|traced|vfork|leaderless
 */
#include "../forked.h"

#include <linux/netlink.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>

/* The number of mseal(2). The system call exists since Linux 6.10; libc may lack the number. */
#define SYS_MSEAL 462

static void tick_for_ever(void) {
    char payload[PAYLOAD_BYTES_MAX];
    await_fork(payload);
    wrong(__FILE__, __LINE__, "a child", "a process that must be refused was forked");
}

static void *tick_in_thread(void *unused) {
    (void)unused;
    tick_for_ever();
    return NULL;
}

/* Starts a process that traces this one, and waits until it does. The tracer ends with this process. */
static void have_a_tracer(void) {
    int ends[2];
    char word;
    REQUIRE(pipe(ends) == 0);
    pid_t tracee = getpid(), tracer = fork();
    REQUIRE(tracer >= 0);
    if (tracer == 0) {
        end_with_parent(tracee);
        REQUIRE(ptrace(PTRACE_SEIZE, tracee, 0, 0) == 0 && write(ends[1], "t", 1) == 1);
        for (;;) pause();
    }
    REQUIRE(read(ends[0], &word, 1) == 1);
    close(ends[0]), close(ends[1]);
}

/* The thread that called vfork(2) waits in the kernel until its child ends. The child waits until it is killed. */
static void stay_in_vfork(void) {
    pid_t parent = getpid();
    if (vfork() == 0) {
        end_with_parent(parent);
        for (;;) pause();
    }
}

int main(int count, char **arguments) {
    REQUIRE(count == 2, "usage: refused REASON");
    const char *reason = arguments[1];
    pthread_t thread;
    if (strcmp(reason, "socket") == 0)
        REQUIRE(socket(AF_NETLINK, SOCK_RAW, NETLINK_GENERIC) >= 0);
    else if (strcmp(reason, "sealed") == 0)
        REQUIRE(syscall(SYS_MSEAL, map_anonymous(PAGE_BYTES), PAGE_BYTES, 0) == 0);
    else if (strcmp(reason, "traced") == 0)
        have_a_tracer();
    ready(0);
    if (strcmp(reason, "vfork") == 0 || strcmp(reason, "leaderless") == 0)
        REQUIRE(pthread_create(&thread, NULL, tick_in_thread, NULL) == 0);
    if (strcmp(reason, "vfork") == 0) stay_in_vfork();
    if (strcmp(reason, "leaderless") == 0) pthread_exit(NULL);
    tick_for_ever();
}
