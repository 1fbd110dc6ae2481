/* A current directory whose path is longer than PATH_MAX: the kernel neither shows nor accepts it. Not carried. */
#include "resource.h"

#include <limits.h>

#define NAME_BYTES 200
#define DEPTH (PATH_MAX / NAME_BYTES + 1)

static char name[NAME_BYTES + 1];

static void set_up(void) {
    memset(name, 'd', NAME_BYTES);
    REQUIRE(chdir(directory) == 0);
    for (int depth = 0; depth < DEPTH; depth++) REQUIRE(mkdir(name, 0700) == 0 && chdir(name) == 0);
}

static void check(void) {
    REQUIRE(mkdir("below", 0700) == 0 && rmdir("below") == 0);
    for (int depth = 0; depth < DEPTH; depth++) REQUIRE(chdir("..") == 0 && rmdir(name) == 0);
    REQUIRE(access(name, F_OK) == -1);
}
