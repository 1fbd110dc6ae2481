/* POSIX message queues, one of which has the name of a file in the root directory: not carried. */
#include "resource.h"

#include <linux/mqueue.h>

static void remove_queue(void) { syscall(SYS_mq_unlink, "etc"); }

static int named, unlinked;

static void set_up(void) {
    at_end(remove_queue);
    named = (int)syscall(SYS_mq_open, "etc", O_RDWR | O_CREAT | O_CLOEXEC, 0600, NULL);
    unlinked = (int)syscall(SYS_mq_open, "etc.gone", O_RDWR | O_CREAT | O_CLOEXEC, 0600, NULL);
    REQUIRE(named >= 0 && unlinked >= 0 && syscall(SYS_mq_unlink, "etc.gone") == 0);
    REQUIRE(syscall(SYS_mq_timedsend, named, "one", 3UL, 1, NULL) == 0);
}

static void check(void) {
    char text[8192];
    REQUIRE(syscall(SYS_mq_timedreceive, named, text, sizeof text, NULL, NULL) == 3 && memcmp(text, "one", 3) == 0);
}
