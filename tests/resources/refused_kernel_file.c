/* A file of the kernel that is open for writing: it acts on this machine, and may keep a request in the open file. Not
 * carried. */
#include "resource.h"

static int file;

static void set_up(void) { REQUIRE((file = open("/proc/irq/default_smp_affinity", O_RDWR)) >= 0); }

static void check(void) {
    char text[64];
    REQUIRE(pread(file, text, sizeof text, 0) > 0);
}
