/* A private mapping of a file of hugetlbfs, not reserved, so that it needs no huge page: not carried. */
#include "resource.h"

#define HUGE_BYTES (2UL << 20)

static char *area;

static void set_up(void) {
    int file = memfd_create("huge", MFD_CLOEXEC | MFD_HUGETLB);
    REQUIRE(file >= 0 && ftruncate(file, HUGE_BYTES) == 0);
    void *mapped = mmap(NULL, HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file, 0);
    REQUIRE(mapped != MAP_FAILED && close(file) == 0);
    area = (char *)mapped;
}

static void check(void) { REQUIRE(area_has_flag(area, "ht") && munmap(area, HUGE_BYTES) == 0); }
