// A parent with one resource of each kind that fork(2) shares or changes. Its argument is the directory for its files.
#include "parent.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char directory[200];

static int file(const char *name, const char *content, int flags) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = CHECK(open(path, O_RDWR | O_CREAT | O_TRUNC | flags, 0644));
    CHECK(write(fd, content, strlen(content)));
    return fd;
}

// A file of `pages` pages of known data.
static int known_file(const char *name, int pages) {
    int fd = file(name, "", 0);
    for (int page = 0; page < pages; page++) {
        uint64_t words[PAGE / 8] = {known(page)};
        CHECK(write(fd, words, PAGE));
    }
    return fd;
}

static void *map(int pages, int flags, int fd) {
    void *area = CHECK(mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, flags | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0));
    return area;
}

/* A private mapping of four pages of a file that is not open. */
static uint64_t *map_closed(const char *name, int pages) {
    int fd = known_file(name, pages);
    uint64_t *area = map(4, MAP_PRIVATE, fd);
    CHECK(close(fd));
    return area;
}

static void files(void) {
    int regular = file("regular", "0123456789", O_APPEND);
    CHECK(lseek(regular, 4, SEEK_SET));
    tell("regular", regular);
    tell("twin", CHECK(fcntl(regular, F_DUPFD_CLOEXEC, 50)));
    tell("directory", CHECK(open(directory, O_RDONLY | O_DIRECTORY)));
    tell("urandom", CHECK(open("/dev/urandom", O_RDONLY)));
    int ends[2];
    CHECK(pipe2(ends, O_NONBLOCK));
    CHECK(write(ends[1], "in the pipe", 11));
    tell("pipe_read", ends[0]);
    tell("pipe_write", ends[1]);
    int event = CHECK(eventfd(0x123, EFD_SEMAPHORE | EFD_CLOEXEC));
    tell("eventfd", event);
    int epoll = CHECK(epoll_create1(0));
    struct epoll_event watch = {.events = EPOLLIN | EPOLLET, .data.u64 = 0xfeedfacecafe};
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &watch));
    tell("epoll", epoll);
    int memory = CHECK(memfd_create("named", MFD_ALLOW_SEALING));
    CHECK(ftruncate(memory, 10 * PAGE + 5));
    CHECK(pwrite(memory, "far", 3, 9 * PAGE));
    CHECK(lseek(memory, 77, SEEK_SET));
    CHECK(fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK));
    tell("memfd", memory);
    tell("memfd_map", (unsigned long)map(2, MAP_SHARED, memory));
    tell("stderr_twin", CHECK(dup(2)));
}

static void memory(void) {
    uint64_t *shared = map(4, MAP_SHARED, -1);
    shared[2 * PAGE / 8] = 0x5a5a;
    tell("shared", (unsigned long)shared);
    uint64_t *hidden = map(2, MAP_PRIVATE, -1);
    hidden[0] = 1;
    CHECK(madvise(hidden, 2 * PAGE, MADV_DONTFORK));
    tell("dontfork", (unsigned long)hidden);
    uint64_t *wiped = map(2, MAP_PRIVATE, -1);
    wiped[0] = 1;
    CHECK(madvise(wiped, 2 * PAGE, MADV_WIPEONFORK));
    tell("wipeonfork", (unsigned long)wiped);
    uint64_t *sparse = map(100, MAP_PRIVATE | MAP_NORESERVE, -1);
    sparse[10 * PAGE / 8] = sparse[11 * PAGE / 8] = sparse[50 * PAGE / 8] = 9;
    (void)*(volatile uint64_t *)(sparse + 70 * PAGE / 8); // The zero page, which has no data.
    tell("sparse", (unsigned long)sparse);
    tell("untouched", (unsigned long)map(3, MAP_PRIVATE, -1));
    tell("clean", (unsigned long)map_closed("clean", 3));
    uint64_t *written = map_closed("written", 4);
    written[2 * PAGE / 8] = 0x77;
    tell("written", (unsigned long)written);
    uint64_t *followed = map(4, MAP_PRIVATE, known_file("followed", 4));
    followed[PAGE / 8] = 0x77;
    tell("followed", (unsigned long)followed);
    tell("by_path", (unsigned long)map(2, MAP_SHARED, known_file("by_path", 2)));
    int gone = known_file("gone", 2);
    char path[256];
    snprintf(path, sizeof path, "%s/gone", directory);
    CHECK(unlink(path));
    tell("deleted", (unsigned long)map(2, MAP_PRIVATE, gone));
    CHECK(close(gone));
    void *locked = map(1, MAP_PRIVATE, -1);
    CHECK(mprotect(locked, PAGE, PROT_NONE));
    tell("noaccess", (unsigned long)locked);
}

static void on_signal(int number) { (void)number; }

static void signals(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_ONSTACK};
    sigaddset(&action.sa_mask, SIGHUP);
    CHECK(sigaction(SIGUSR1, &action, NULL));
    CHECK((int)(signal(SIGPIPE, SIG_IGN) == SIG_ERR ? -1 : 0));
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigaddset(&blocked, SIGRTMIN);
    CHECK(sigprocmask(SIG_BLOCK, &blocked, NULL));
    CHECK(sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 41}));
    CHECK(sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 42}));
    CHECK((int)syscall(SYS_tgkill, getpid(), getpid(), SIGUSR1));
    tell("handler", (unsigned long)on_signal);
}

static void attributes(void) {
    CHECK(chdir(directory));
    umask(027);
    CHECK(prctl(PR_SET_PDEATHSIG, SIGUSR2));
    CHECK(prctl(PR_SET_TIMERSLACK, 12345));
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(prctl(PR_SET_DUMPABLE, 0));
    CHECK(setpriority(PRIO_PROCESS, 0, 3));
    struct rlimit limit = {100, 200};
    CHECK(setrlimit(RLIMIT_NOFILE, &limit));
    tell("brk", (unsigned long)sbrk(0));
}

int main(int count, char **words) {
    (void)count;
    begin();
    snprintf(directory, sizeof directory, "%s", words[1]);
    files();
    memory();
    signals();
    sbrk(5000);
    attributes();
    ready();
    for (;;) pause();
}
