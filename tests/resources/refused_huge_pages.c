/* A private mapping of huge pages of hugetlbfs, not reserved, so that it needs none: not carried. */
#include "resource.h"

#define HUGE_BYTES (2UL << 20)

static char *area;

static void set_up(void) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE;
    void *mapped = mmap(NULL, 2 * HUGE_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
    REQUIRE(mapped != MAP_FAILED);
    area = (char *)mapped;
}

static void check(void) { REQUIRE(area_has_flag(area, "ht") && munmap(area, 2 * HUGE_BYTES) == 0); }
