/* A mapped file whose name looks like that of a removed file. The kernel does not show the difference. Not carried. */
#include "resource.h"

static int file;
static char *mapped;

static void set_up(void) {
    file = open(path_of("x (deleted)"), O_RDWR | O_CREAT, 0600);
    REQUIRE(file >= 0 && ftruncate(file, PAGE_BYTES) == 0);
    mapped = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    REQUIRE(mapped != MAP_FAILED);
}

static void check(void) {
    mapped[0] = 'w';
    char byte;
    REQUIRE(pread(file, &byte, 1, 0) == 1 && byte == 'w');
}
