/* Advice of madvise(2) for mappings: huge pages, access patterns, dumps, forks, merging. */
#include "resource.h"

static const struct {
    int advice;
    const char *flag;
} advices[] = {{MADV_HUGEPAGE, "hg"}, {MADV_NOHUGEPAGE, "nh"},   {MADV_SEQUENTIAL, "sr"}, {MADV_RANDOM, "rr"},
               {MADV_DONTDUMP, "dd"}, {MADV_WIPEONFORK, "wf"}, {MADV_MERGEABLE, "mg"}};

#define COUNT (sizeof advices / sizeof advices[0])
#define BYTES (4 * PAGE_BYTES)

static char *areas[COUNT], *plain;

static void set_up(void) {
    for (size_t i = 0; i < COUNT; i++) {
        areas[i] = map_private(BYTES, PROT_READ | PROT_WRITE);
        memset(areas[i], 'a' + (int)i, BYTES);
        REQUIRE(madvise(areas[i], BYTES, advices[i].advice) == 0, "%s", advices[i].flag);
        map_private(PAGE_BYTES, PROT_NONE);
    }
    plain = map_private(BYTES, PROT_READ | PROT_WRITE);
}

static void check(void) {
    for (size_t i = 0; i < COUNT; i++) {
        REQUIRE(area_has_flag(areas[i], advices[i].flag), "%s is lost", advices[i].flag);
        REQUIRE(!area_has_flag(plain, advices[i].flag), "%s on an area without advice", advices[i].flag);
        char expected = is_child && advices[i].advice == MADV_WIPEONFORK ? 0 : (char)('a' + (int)i);
        REQUIRE(areas[i][0] == expected && areas[i][BYTES - 1] == expected, "%s", advices[i].flag);
    }
}
