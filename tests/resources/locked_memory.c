/* Memory that is locked, all at once and page by page as it is touched. */
#include "resource.h"

#define BYTES (8 * PAGE_BYTES)

static char *locked, *on_fault, *plain;

static void set_up(void) {
    locked = map_private(BYTES, PROT_READ | PROT_WRITE), plain = map_private(BYTES, PROT_READ), on_fault = map_private(BYTES, PROT_READ | PROT_WRITE);
    locked[5] = 'l', on_fault[PAGE_BYTES] = 'f';
    REQUIRE(mlock(locked, BYTES) == 0 && mlock2(on_fault, BYTES, MLOCK_ONFAULT) == 0);
}

static void check(void) {
    char line[128];
    REQUIRE(locked[5] == 'l' && on_fault[PAGE_BYTES] == 'f');
    REQUIRE(area_has_flag(locked, "lo") && area_has_flag(on_fault, "lo") && !area_has_flag(plain, "lo"), "locks are lost");
    REQUIRE(read_line("/proc/self/status", "VmLck:", line, sizeof line) && atoi(line) == 2 * (int)BYTES / 1024, "%s", line);
}
