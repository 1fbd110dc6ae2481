/* An open file whose path is not UTF-8: not carried. */
#include "resource.h"

static int file;

static void set_up(void) {
    file = open(path_of("name-\xff"), O_RDWR | O_CREAT, 0600);
    REQUIRE(file == 3 && write(file, "x", 1) == 1);
}

static void check(void) {
    char byte;
    REQUIRE(pread(file, &byte, 1, 0) == 1 && byte == 'x' && unlink(path_of("name-\xff")) == 0);
}
