/* An inotify with watches, numbered with a gap, that still see what happens. */
#include "resource.h"

#include <sys/inotify.h>

static int notify, first, gone, second;

static void set_up(void) {
    REQUIRE(mkdir(path_of("a"), 0700) == 0 && mkdir(path_of("b"), 0700) == 0);
    notify = inotify_init1(IN_NONBLOCK);
    first = inotify_add_watch(notify, path_of("a"), IN_CREATE | IN_ONLYDIR);
    gone = inotify_add_watch(notify, "/usr", IN_CREATE);
    REQUIRE(inotify_rm_watch(notify, gone) == 0);
    second = inotify_add_watch(notify, path_of("b"), IN_CREATE | IN_DELETE);
    struct inotify_event ignored;
    REQUIRE(first == 1 && second == 3 && read(notify, &ignored, sizeof ignored) > 0 && ignored.mask == IN_IGNORED);
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
    REQUIRE(read(notify, byte, sizeof byte) == -1 && errno == EAGAIN, "an event from nowhere");
    REQUIRE(close(open(path_of("b/file"), O_CREAT | O_WRONLY, 0600)) == 0);
    require_event(second, IN_CREATE);
    REQUIRE(close(open(path_of("a/file"), O_CREAT | O_WRONLY, 0600)) == 0 && unlink(path_of("a/file")) == 0);
    require_event(first, IN_CREATE);
    REQUIRE(unlink(path_of("b/file")) == 0);
    require_event(second, IN_DELETE);
    REQUIRE(inotify_add_watch(notify, path_of("a"), IN_DELETE | IN_MASK_ADD) == first);
}
