/* perf_event_open(2): not carried. */
#include "resource.h"

#include <linux/perf_event.h>

static int fd;

static void set_up(void) {
    struct perf_event_attr wanted = {.type = PERF_TYPE_SOFTWARE, .size = sizeof wanted, .config = PERF_COUNT_SW_TASK_CLOCK};
    fd = (int)syscall(SYS_perf_event_open, &wanted, 0, -1, -1, 0);
    REQUIRE(fd >= 0);
}

static void check(void) {
    uint64_t count;
    REQUIRE(read(fd, &count, sizeof count) == sizeof count);
}
