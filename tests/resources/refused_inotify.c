/* An inotify with an event that nobody has read: how many bytes wait is all that the kernel tells without taking them out. */
#include "resource.h"

#include <sys/inotify.h>

static int notify, watch;

static void set_up(void) {
    notify = inotify_init1(IN_NONBLOCK);
    watch = inotify_add_watch(notify, directory, IN_CREATE);
    REQUIRE(watch == 1 && close(open(path_of("new"), O_CREAT | O_WRONLY, 0600)) == 0);
}

static void check(void) {
    union {
        struct inotify_event event;
        char bytes[512];
    } got;
    REQUIRE(read(notify, &got, sizeof got) > 0 && got.event.wd == watch && strcmp(got.event.name, "new") == 0);
    REQUIRE(read(notify, &got, sizeof got) == -1 && errno == EAGAIN);
}
