/* Unprivileged descendants with their own root (chroot(2)), like daemons: one with files inside and outside, and its
 * child that shares its root and directory (CLONE_FS). A child of the latter has a nested root. Another descendant has
 * its current directory outside. */
#include "resource.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { JAILED, SHARER, DEEPER, OUTSIDE, COUNT };
enum { NOBODY = 65534 };

static struct {
    uint32_t is_ready[COUNT], is_asked[COUNT], has_answered[COUNT];
} *shared;

static const char text[] = "of this file";

static void write_file(const char *path) {
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    REQUIRE(file >= 0 && write(file, text, sizeof text) == sizeof text && close(file) == 0);
}

static int says_text(int file) {
    char found[sizeof text] = "";
    return file >= 0 && pread(file, found, sizeof found, 0) == sizeof found && strcmp(found, text) == 0;
}

static void require_at(const char *path, int is_there) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    REQUIRE(is_there ? says_text(file) : file < 0 && errno == ENOENT, "%s", path);
    if (file >= 0) close(file);
}

static void require_directory(const char *wanted) {
    char now[PATH_BYTES_MAX];
    REQUIRE(syscall(SYS_getcwd, now, sizeof now) > 0 && strcmp(now, wanted) == 0, "%s, not %s", now, wanted);
}

/* Drops all privileges, so that only open files lead out of the root. A privileged process would also outlive an
 * unprivileged parent: the kernel would not deliver the signal of PR_SET_PDEATHSIG. */
static void give_up_rights(void) {
    REQUIRE(setresgid(NOBODY, NOBODY, NOBODY) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0);
    REQUIRE(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
}

static void answer(int which) {
    give_up_rights();
    __atomic_store_n(&shared->is_ready[which], 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&shared->is_asked[which], __ATOMIC_SEQ_CST)) usleep(1000);
}

static __attribute__((noreturn)) void stay(int which) {
    __atomic_store_n(&shared->has_answered[which], 1, __ATOMIC_SEQ_CST);
    for (;;) pause();
}

static void born(int flags, void (*live)(void)) {
    pid_t self = getpid(), child = (pid_t)syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
    REQUIRE(child >= 0);
    if (child > 0) return;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != self) _exit(1);
    live();
}

static __attribute__((noreturn)) void be_deeper(void) {
    REQUIRE(chdir("/deeper") == 0 && chroot(".") == 0);
    answer(DEEPER);
    require_directory("/");
    require_at("/below", 1), require_at("/../../inside", 0), require_at("/inside", 0);
    write_file("/made");
    stay(DEEPER);
}

static __attribute__((noreturn)) void be_sharer(void) {
    born(0, be_deeper);
    answer(SHARER);
    require_at("/inside", 1), require_at("inside", 1), require_at("/outside", 0);
    /* This also changes the directory of the process that shares it (CLONE_FS). */
    REQUIRE(chdir("/deeper") == 0);
    stay(SHARER);
}

/* Creates a listening socket with a path below this root. */
static int listen_at(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    REQUIRE(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0);
    return listener;
}

static __attribute__((noreturn)) void be_jailed(void) {
    int outside = open(path_of("outside"), O_RDWR | O_CLOEXEC);
    char *mapped = mmap(NULL, PAGE_BYTES, PROT_READ, MAP_SHARED, outside, 0);
    REQUIRE(mapped != MAP_FAILED && chdir(path_of("jail")) == 0 && chroot(".") == 0);
    int inside = open("/inside", O_RDONLY | O_CLOEXEC);
    listen_at("/socket");
    born(CLONE_FS, be_sharer);
    answer(JAILED);
    /* The process that shares the current directory has changed it. */
    require_directory("/deeper");
    require_at("/inside", 1), require_at("/../outside", 0), require_at("/proc", 0);
    REQUIRE(says_text(inside) && says_text(outside) && strcmp(mapped, text) == 0);
    REQUIRE(chroot("/") != 0 && errno == EPERM);
    stay(JAILED);
}

static __attribute__((noreturn)) void be_outside(void) {
    char wanted[2 * PATH_BYTES_MAX];
    snprintf(wanted, sizeof wanted, "(unreachable)%s", directory);
    REQUIRE(chdir(directory) == 0 && chroot(path_of("jail")) == 0);
    answer(OUTSIDE);
    require_directory(wanted);
    require_at("outside", 1), require_at("/inside", 1), require_at("/outside", 0);
    stay(OUTSIDE);
}

static void set_up(void) {
    shared = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(shared != MAP_FAILED);
    umask(0);
    REQUIRE(mkdir(path_of("jail"), 0755) == 0 && mkdir(path_of("jail/deeper"), 0777) == 0);
    write_file(path_of("outside")), write_file(path_of("jail/inside")), write_file(path_of("jail/deeper/below"));
    born(0, be_jailed), born(0, be_outside);
    for (int which = 0; which < COUNT; which++)
        REQUIRE(COMES_TRUE(__atomic_load_n(&shared->is_ready[which], __ATOMIC_SEQ_CST)), "process %d", which);
}

/* Returns whether a socket listens at a path. */
static int is_reached(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    return connect(client, (struct sockaddr *)&address, sizeof address) == 0 && close(client) == 0;
}

static void check(void) {
    const int order[COUNT] = {DEEPER, SHARER, JAILED, OUTSIDE};
    for (int at = 0; at < COUNT; at++) {
        __atomic_store_n(&shared->is_asked[order[at]], 1, __ATOMIC_SEQ_CST);
        int has_answered = COMES_TRUE(__atomic_load_n(&shared->has_answered[order[at]], __ATOMIC_SEQ_CST));
        REQUIRE(has_answered, "process %d", order[at]);
    }
    require_at(path_of("outside"), 1), require_at(path_of("jail/deeper/made"), 1);
    REQUIRE(is_reached(path_of("jail/socket")) && access("/proc/self", F_OK) == 0);
}
