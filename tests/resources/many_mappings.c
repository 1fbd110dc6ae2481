/* Tens of thousands of mappings. */
#include "resource.h"

#define COUNT 20000UL

static char *area;

static void set_up(void) {
    area = map_private(COUNT * PAGE_BYTES, PROT_READ | PROT_WRITE);
    for (size_t page = 0; page < COUNT; page++) {
        if (page % 100 == 0) area[page * PAGE_BYTES] = (char)(page / 100);
        if (page % 2) REQUIRE(mprotect(area + page * PAGE_BYTES, PAGE_BYTES, PROT_READ) == 0);
    }
}

static void check(void) {
    for (size_t page = 0; page < COUNT; page++)
        REQUIRE(area[page * PAGE_BYTES] == (page % 100 == 0 ? (char)(page / 100) : 0), "page %zu", page);
    REQUIRE(area_has_flag(area, "wr") && !area_has_flag(area + PAGE_BYTES, "wr"));
}
