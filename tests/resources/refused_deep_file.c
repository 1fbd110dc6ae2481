/* An open file whose path is longer than PATH_MAX: the kernel does not show it. Not carried. */
#include "resource.h"

#include <limits.h>

#define NAME_BYTES 200
#define DEPTH (PATH_MAX / NAME_BYTES + 1)

static char name[NAME_BYTES + 1];
static int file;

static void set_up(void) {
    memset(name, 'd', NAME_BYTES);
    REQUIRE(chdir(directory) == 0);
    for (int depth = 0; depth < DEPTH; depth++) REQUIRE(mkdir(name, 0700) == 0 && chdir(name) == 0);
    REQUIRE((file = open("file", O_CREAT | O_RDWR, 0600)) == 3 && write(file, "text", 4) == 4 && chdir("/") == 0);
}

static void check(void) {
    char text[4];
    REQUIRE(pread(file, text, sizeof text, 0) == 4 && memcmp(text, "text", 4) == 0);
}
