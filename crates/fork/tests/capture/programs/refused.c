// A parent with one thing that cannot be carried, named by its argument.
#include "parent.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>

static void on_tick(int number) { (void)number; }

static void make(const char *what) {
    int ends[2];
    if (!strcmp(what, "socket")) CHECK(socket(AF_INET, SOCK_STREAM, 0));
    if (!strcmp(what, "socketpair")) CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    if (!strcmp(what, "pidfd")) CHECK((int)syscall(SYS_pidfd_open, getppid(), 0));
    if (!strcmp(what, "userfaultfd")) CHECK((int)syscall(SYS_userfaultfd, 0));
    if (!strcmp(what, "device")) CHECK(open("/dev/fuse", O_RDWR));
    if (!strcmp(what, "half_pipe")) {
        CHECK(pipe(ends));
        CHECK(close(ends[1]));
    }
    if (!strcmp(what, "named_pipe")) {
        unlink("/tmp/farfork-test-fifo");
        CHECK(mkfifo("/tmp/farfork-test-fifo", 0600));
        CHECK(open("/tmp/farfork-test-fifo", O_RDWR));
        unlink("/tmp/farfork-test-fifo");
    }
    if (!strcmp(what, "deleted")) {
        char path[] = "/tmp/farfork-test-XXXXXX";
        CHECK(mkstemp(path));
        CHECK(unlink(path));
    }
    if (!strcmp(what, "system_v")) {
        int id = CHECK(shmget(IPC_PRIVATE, PAGE, 0600));
        CHECK(shmat(id, NULL, 0));
        CHECK(shmctl(id, IPC_RMID, NULL));
    }
    if (!strcmp(what, "posix_timer")) {
        timer_t timer;
        CHECK(timer_create(CLOCK_THREAD_CPUTIME_ID, NULL, &timer));
    }
    if (!strcmp(what, "sealed")) {
        char *at = CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        CHECK(syscall(462 /* mseal */, at, PAGE, 0));
    }
    if (!strcmp(what, "seccomp")) {
        struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        struct sock_fprog program = {1, &allow};
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    }
}

int main(int count, char **words) {
    (void)count;
    begin();
    make(words[1]);
    ready();
    for (char byte; read(0, &byte, 1) == 1;) write(1, &byte, 1);
}
