/* More shared mappings than descriptors, each with its own contents. */
#include "resource.h"

enum { AREAS = 200 };

static uint32_t *areas[AREAS];

static void set_up(void) {
    for (uint32_t which = 0; which < AREAS; which++) {
        areas[which] = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        REQUIRE(areas[which] != MAP_FAILED);
        *areas[which] = which + 1;
    }
}

static void check(void) {
    for (uint32_t which = 0; which < AREAS; which++) REQUIRE(*areas[which] == which + 1, "area %u", which);
}
