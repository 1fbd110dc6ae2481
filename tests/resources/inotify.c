/* An inotify instance with watches whose numbers have gaps and exceed nine. The watches still report events and can be
 * removed by number. A child process with its own root (chroot(2)) has another instance. */
#include "resource.h"

#include <sys/inotify.h>
#include <sys/prctl.h>

#define MORE 14

static int notify, first, gone, second, more[MORE];
static char more_paths[MORE][2 * PATH_BYTES_MAX];
static pid_t jailed;

static __attribute__((noreturn)) void watch_in_jail(int ready, pid_t parent) {
    struct inotify_event event[16];
    /* Without this signal, a process whose parent is killed would remain until its alarm. */
    REQUIRE(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent);
    REQUIRE(chroot(path_of("jail")) == 0 && chdir("/") == 0);
    int own = inotify_init1(IN_CLOEXEC), watch = inotify_add_watch(own, "/", IN_CREATE);
    REQUIRE(write(ready, "x", 1) == 1);
    alarm(PATIENCE_MS / 1000);
    _exit(read(own, event, sizeof event) > 0 && event->wd == watch && event->mask == (IN_CREATE | IN_ISDIR) ? 0 : 1);
}

static void set_up(void) {
    REQUIRE(mkdir(path_of("a"), 0700) == 0 && mkdir(path_of("b"), 0700) == 0);
    notify = inotify_init1(IN_NONBLOCK);
    first = inotify_add_watch(notify, path_of("a"), IN_CREATE | IN_ONLYDIR);
    gone = inotify_add_watch(notify, "/usr", IN_CREATE);
    REQUIRE(inotify_rm_watch(notify, gone) == 0);
    second = inotify_add_watch(notify, path_of("b"), IN_CREATE | IN_DELETE);
    for (int i = 0; i < MORE; i++) {
        snprintf(more_paths[i], sizeof more_paths[i], "%s/more-%d", directory, i);
        REQUIRE(mkdir(more_paths[i], 0700) == 0 && (more[i] = inotify_add_watch(notify, more_paths[i], IN_CREATE | IN_DELETE)) == i + 4);
    }
    /* Numbers 9 and 12 are free. */
    REQUIRE(inotify_rm_watch(notify, 9) == 0 && inotify_rm_watch(notify, 12) == 0);
    int ends[2];
    char byte;
    pid_t parent = getpid();
    REQUIRE(mkdir(path_of("jail"), 0700) == 0 && pipe(ends) == 0 && (jailed = fork()) >= 0);
    if (jailed == 0) watch_in_jail(ends[1], parent);
    REQUIRE(read(ends[0], &byte, 1) == 1);
    struct inotify_event ignored;
    REQUIRE(first == 1 && second == 3);
    for (int i = 0; i < 3; i++) REQUIRE(read(notify, &ignored, sizeof ignored) > 0 && ignored.mask == IN_IGNORED);
}

static void require_event(int watch, uint32_t mask) {
    union {
        struct inotify_event event;
        char bytes[512];
    } got;
    REQUIRE(poll(&(struct pollfd){.fd = notify, .events = POLLIN}, 1, PATIENCE_MS) == 1, "no event");
    REQUIRE(read(notify, &got, sizeof got) > 0 && got.event.wd == watch && got.event.mask == mask, "watch %d, mask %x",
            got.event.wd, got.event.mask);
}

static void check(void) {
    char byte[64];
    REQUIRE(read(notify, byte, sizeof byte) == -1 && errno == EAGAIN, "an unexpected event");
    REQUIRE(close(open(path_of("b/file"), O_CREAT | O_WRONLY, 0600)) == 0);
    require_event(second, IN_CREATE);
    REQUIRE(close(open(path_of("a/file"), O_CREAT | O_WRONLY, 0600)) == 0 && unlink(path_of("a/file")) == 0);
    require_event(first, IN_CREATE);
    REQUIRE(unlink(path_of("b/file")) == 0);
    require_event(second, IN_DELETE);
    REQUIRE(inotify_add_watch(notify, path_of("a"), IN_DELETE | IN_MASK_ADD) == first);
    for (int i = 0; i < MORE; i++) {
        char path[2 * PATH_BYTES_MAX + 8];
        REQUIRE(snprintf(path, sizeof path, "%.500s/made", more_paths[i]) > 0 && mkdir(path, 0700) == 0);
        if (more[i] != 9 && more[i] != 12) require_event(more[i], IN_CREATE | IN_ISDIR);
    }
    REQUIRE(inotify_rm_watch(notify, 9) == -1 && errno == EINVAL && inotify_rm_watch(notify, 16) == 0);
    require_event(16, IN_IGNORED);
    REQUIRE(inotify_rm_watch(notify, 16) == -1 && rmdir(strcat(more_paths[16 - 4], "/made")) == 0);
    REQUIRE(read(notify, byte, sizeof byte) == -1 && errno == EAGAIN, "the removed watch still reports events");
    REQUIRE(inotify_add_watch(notify, more_paths[17 - 4], IN_DELETE) == 17, "the watch of a directory has another number");
    int status;
    REQUIRE(mkdir(path_of("jail/made"), 0700) == 0 && waitpid(jailed, &status, 0) == jailed && status == 0,
            "status %x", status);
}
