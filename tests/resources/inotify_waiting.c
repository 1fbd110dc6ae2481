/* An inotify instance with unread events and two watches. Events cannot be peeked, so the child gets a queue overflow
 * and then later events. The parent keeps its events. */
#include "resource.h"

#include <sys/inotify.h>

static int notify, first, second;

static void make_file(const char *path) { REQUIRE(close(open(path, O_CREAT | O_WRONLY, 0600)) == 0, "%s", path); }

static void set_up(void) {
    REQUIRE(mkdir(path_of("a"), 0700) == 0 && mkdir(path_of("b"), 0700) == 0);
    notify = inotify_init1(IN_NONBLOCK);
    REQUIRE(inotify_rm_watch(notify, inotify_add_watch(notify, "/usr", IN_CREATE)) == 0);
    first = inotify_add_watch(notify, path_of("a"), IN_CREATE), second = inotify_add_watch(notify, path_of("b"), IN_DELETE);
    struct inotify_event ignored;
    REQUIRE(read(notify, &ignored, sizeof ignored) > 0 && ignored.mask == IN_IGNORED && first == 2 && second == 3);
    make_file(path_of("a/new"));
    make_file(path_of("b/old"));
    REQUIRE(unlink(path_of("b/old")) == 0);
}

static void require_event(int watch, uint32_t mask, const char *name) {
    union {
        struct inotify_event event;
        char bytes[sizeof(struct inotify_event) + 16];
    } got;
    REQUIRE(poll(&(struct pollfd){.fd = notify, .events = POLLIN}, 1, PATIENCE_MS) == 1, "no event");
    REQUIRE(read(notify, &got, sizeof got) > 0 && got.event.wd == watch && got.event.mask == mask, "watch %d, mask %x",
            got.event.wd, got.event.mask);
    REQUIRE(name ? strcmp(got.event.name, name) == 0 : got.event.len == 0);
}

static void check(void) {
    char byte[64];
    if (is_child) {
        require_event(-1, IN_Q_OVERFLOW, NULL);
    } else {
        require_event(first, IN_CREATE, "new");
        require_event(second, IN_DELETE, "old");
    }
    REQUIRE(read(notify, byte, sizeof byte) == -1 && errno == EAGAIN, "an unexpected event");
    make_file(path_of("a/later"));
    require_event(first, IN_CREATE, "later");
    REQUIRE(unlink(path_of("a/later")) == 0);
}
