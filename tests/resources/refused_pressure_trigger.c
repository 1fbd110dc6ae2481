/* A trigger of pressure stall information (PSI), which belongs to the open file: not carried. */
#include "resource.h"

static int fd;

static void set_up(void) {
    const char trigger[] = "some 500000 2000000";
    fd = open("/proc/pressure/memory", O_RDWR | O_NONBLOCK);
    REQUIRE(fd >= 0 && write(fd, trigger, sizeof trigger) > 0);
}

static void check(void) {
    const char trigger[] = "some 500000 2000000";
    REQUIRE(write(fd, trigger, sizeof trigger) == -1 && errno == EBUSY, "the trigger is gone");
}
