/* A sealed mapping (mseal(2)): not carried. */
#include "resource.h"

#define SYS_MSEAL 462 /* since Linux 6.10; libc may lack it */

static char *area;

static void set_up(void) {
    area = map_private(PAGE_BYTES, PROT_READ | PROT_WRITE);
    area[7] = 's';
    REQUIRE(syscall(SYS_MSEAL, area, PAGE_BYTES, 0) == 0);
}

static void check(void) { REQUIRE(area[7] == 's' && munmap(area, PAGE_BYTES) == -1 && errno == EPERM); }
