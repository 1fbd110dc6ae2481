/* Guard pages of both kinds: inaccessible mappings, and guarded pages within a mapping (MADV_GUARD_INSTALL). */
#include "resource.h"

#define GUARD_INSTALL 102 /* since Linux 6.13; libc may lack it */
#define GUARD_REMOVE 103

static char *area, *empty;

static void set_up(void) {
    area = map_private(64 * PAGE_BYTES, PROT_READ | PROT_WRITE);
    memset(area, 'd', 64 * PAGE_BYTES);
    REQUIRE(mprotect(area, PAGE_BYTES, PROT_NONE) == 0);
    REQUIRE(madvise(area + 16 * PAGE_BYTES, 4 * PAGE_BYTES, GUARD_INSTALL) == 0);
    empty = map_private(64 * PAGE_BYTES, PROT_READ | PROT_WRITE);
    REQUIRE(madvise(empty, 2 * PAGE_BYTES, GUARD_INSTALL) == 0);
}

static void check(void) {
    REQUIRE(!is_readable(area) && is_readable(area + PAGE_BYTES), "the guard page before the area");
    for (size_t page = 16; page < 20; page++) REQUIRE(!is_readable(area + page * PAGE_BYTES), "page %zu is not guarded", page);
    REQUIRE(area[15 * PAGE_BYTES] == 'd' && area[20 * PAGE_BYTES] == 'd' && area[64 * PAGE_BYTES - 1] == 'd');
    REQUIRE(!is_readable(empty) && !is_readable(empty + PAGE_BYTES) && is_readable(empty + 2 * PAGE_BYTES));
    REQUIRE(madvise(area + 16 * PAGE_BYTES, 4 * PAGE_BYTES, GUARD_REMOVE) == 0 && area[16 * PAGE_BYTES] == 0);
    REQUIRE(mprotect(area, PAGE_BYTES, PROT_READ) == 0 && area[0] == 'd');
}
