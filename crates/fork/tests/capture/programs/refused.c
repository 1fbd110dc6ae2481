// A parent with one resource that cannot be carried. Its argument names the resource.
#include "parent.h"

#include <linux/netlink.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>

static void *waits(void *unused) {
    for (;;) pause();
    return unused;
}

// Starts a process that is not of this tree, because its parent has ended. It has copies of all descriptors until the
// standard input ends.
static void hold_outside(void) {
    int child = CHECK(fork());
    if (child) {
        CHECK(waitpid(child, NULL, 0));
        return;
    }
    if (CHECK(fork()) == 0) {
        for (char byte; read(0, &byte, 1) == 1;) continue;
    }
    _exit(0);
}

static void make(const char *what) {
    int ends[2];
    if (!strcmp(what, "socket")) CHECK(socket(AF_NETLINK, SOCK_RAW, NETLINK_GENERIC));
    if (!strcmp(what, "pidfd")) CHECK((int)syscall(SYS_pidfd_open, getppid(), 0));
    if (!strcmp(what, "userfaultfd")) CHECK((int)syscall(SYS_userfaultfd, 0));
    if (!strcmp(what, "device")) CHECK(open("/dev/fuse", O_RDWR));
    if (!strcmp(what, "pathless_inotify")) {
        char path[] = "/tmp/farfork-test-XXXXXX";
        int notify = CHECK(inotify_init()), file = CHECK(mkstemp(path));
        CHECK(inotify_add_watch(notify, path, IN_CLOSE_WRITE | IN_DELETE_SELF));
        CHECK(file);
        CHECK(unlink(path));
    }
    if (!strcmp(what, "half_pipe")) {
        CHECK(pipe(ends));
        CHECK(close(ends[1]));
    }
    if (!strcmp(what, "outside_pipe")) {
        CHECK(pipe(ends));
        hold_outside();
        CHECK(close(ends[1]));
    }
    if (!strcmp(what, "deleted_link")) {
        unlink("/tmp/farfork-test-link");
        CHECK(symlink("anywhere", "/tmp/farfork-test-link"));
        CHECK(open("/tmp/farfork-test-link", O_PATH | O_NOFOLLOW));
        unlink("/tmp/farfork-test-link");
    }
    if (!strcmp(what, "posix_timer")) {
        // A timer of one of two threads: the kernel does not report which.
        pthread_t other;
        timer_t timer;
        start(&other, "other", waits);
        CHECK(timer_create(CLOCK_THREAD_CPUTIME_ID, NULL, &timer));
    }
    if (!strcmp(what, "sealed")) {
        char *at = CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        CHECK(syscall(462 /* mseal */, at, PAGE, 0));
    }
    // Forks a second process, so that two pauses run at the same time.
    if (!strcmp(what, "unforked")) {
        if (CHECK(fork()) == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;) pause();
        }
        char *at = CHECK(mmap(NULL, 200 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        for (int place = 0; place < 100; place++) CHECK(madvise(at + 2 * place * PAGE, PAGE, MADV_DONTFORK));
    }
}

int main(int count, char **words) {
    (void)count;
    begin();
    make(words[1]);
    ready();
    for (char byte; read(0, &byte, 1) == 1;) write(1, &byte, 1);
}
