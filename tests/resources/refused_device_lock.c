/* Locks on a device and on an eventfd, which share their inodes with all processes of the machine. Not carried. */
#include "resource.h"

#include <sys/eventfd.h>
#include <sys/file.h>

static int device, counter;

static void set_up(void) {
    REQUIRE((device = open("/dev/zero", O_RDONLY)) == 3 && flock(device, LOCK_SH) == 0);
    REQUIRE((counter = eventfd(0, 0)) == 4 && flock(counter, LOCK_SH) == 0);
}

static void check(void) { REQUIRE(flock(device, LOCK_UN) == 0 && flock(counter, LOCK_UN) == 0); }
