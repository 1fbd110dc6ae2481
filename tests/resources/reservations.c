/* Reserved mappings of terabytes with little memory in use, as of the JVM, Go and sanitizers. */
#include "resource.h"

#define TERABYTE (1UL << 40)

static char *reserved, *writable;

static void set_up(void) {
    reserved = map_private(4 * TERABYTE, PROT_NONE), writable = map_private(TERABYTE, PROT_READ | PROT_WRITE);
    REQUIRE(mprotect(reserved + TERABYTE, 16 * PAGE_BYTES, PROT_READ | PROT_WRITE) == 0);
    reserved[TERABYTE] = 'r';
    writable[0] = 'a', writable[TERABYTE / 2] = 'b', writable[TERABYTE - 1] = 'c';
}

static void check(void) {
    REQUIRE(reserved[TERABYTE] == 'r' && reserved[TERABYTE + 15 * PAGE_BYTES] == 0 && !is_readable(reserved + 2 * TERABYTE));
    REQUIRE(writable[0] == 'a' && writable[TERABYTE / 2] == 'b' && writable[TERABYTE - 1] == 'c' && writable[TERABYTE / 3] == 0);
    REQUIRE(mprotect(reserved + 3 * TERABYTE, PAGE_BYTES, PROT_READ | PROT_WRITE) == 0);
    reserved[3 * TERABYTE] = 'n';
}
