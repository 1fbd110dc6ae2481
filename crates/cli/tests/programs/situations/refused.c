/* A parent that cannot be prepared, for one reason, and runs on.
 * usage: refused socket|unlinked|seccomp|sealed|system_v|traced|vfork|leaderless
 */
#include "../forked.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>

/* Linux 6.10; libc may not have it yet. */
#define SYS_MSEAL 462

static void tick_for_ever(void) {
    char payload[PAYLOAD_BYTES_MAX];
    await_fork(payload);
    wrong(__FILE__, __LINE__, "a child", "what should have been refused was forked");
}

static void *tick_in_thread(void *unused) {
    (void)unused;
    tick_for_ever();
    return NULL;
}

/* Connected over loopback to itself. */
static void open_connection(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0);
    REQUIRE(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    REQUIRE(connect(client, (struct sockaddr *)&address, length) == 0 && accept(listener, NULL, NULL) >= 0);
}

static void open_unlinked(void) {
    char path[] = "/tmp/farfork-test-XXXXXX";
    REQUIRE(mkstemp(path) >= 0 && unlink(path) == 0);
}

/* A filter that lets everything through. */
static void filter_calls(void) {
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = 1, .filter = &allow};
    REQUIRE(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    REQUIRE(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void attach_system_v(void) {
    int id = shmget(IPC_PRIVATE, PAGE_BYTES, 0600);
    REQUIRE(id >= 0 && shmat(id, NULL, 0) != (void *)-1 && shmctl(id, IPC_RMID, NULL) == 0);
}

/* By a process of its own, which says when it is there and ends with its parent. */
static void have_a_tracer(void) {
    int ends[2];
    char word;
    REQUIRE(pipe(ends) == 0);
    pid_t tracee = getpid(), tracer = fork();
    REQUIRE(tracer >= 0);
    if (tracer == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        REQUIRE(ptrace(PTRACE_SEIZE, tracee, 0, 0) == 0 && write(ends[1], "t", 1) == 1);
        for (;;) pause();
    }
    REQUIRE(read(ends[0], &word, 1) == 1);
    close(ends[0]), close(ends[1]);
}

/* The thread that called vfork(2) stays in the kernel until its child ends; the child holds it until it is killed. */
static void stay_in_vfork(void) {
    if (vfork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
}

int main(int count, char **arguments) {
    REQUIRE(count == 2, "usage: refused REASON");
    const char *reason = arguments[1];
    pthread_t thread;
    if (strcmp(reason, "socket") == 0)
        open_connection();
    else if (strcmp(reason, "seccomp") == 0)
        filter_calls();
    else if (strcmp(reason, "sealed") == 0)
        REQUIRE(syscall(SYS_MSEAL, map_anonymous(PAGE_BYTES), PAGE_BYTES, 0) == 0);
    else if (strcmp(reason, "system_v") == 0)
        attach_system_v();
    else if (strcmp(reason, "traced") == 0)
        have_a_tracer();
    else if (strcmp(reason, "unlinked") == 0)
        open_unlinked();
    ready(0);
    if (strcmp(reason, "vfork") == 0 || strcmp(reason, "leaderless") == 0)
        REQUIRE(pthread_create(&thread, NULL, tick_in_thread, NULL) == 0);
    if (strcmp(reason, "vfork") == 0) stay_in_vfork();
    if (strcmp(reason, "leaderless") == 0) pthread_exit(NULL);
    tick_for_ever();
}
