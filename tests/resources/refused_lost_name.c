/* A file that was made without a name (O_TMPFILE) and linked in another directory: its path is unknown. Not carried. */
#include "resource.h"

static int file;

static void remove_all(void) { unlink(path_of("elsewhere/name")), rmdir(path_of("elsewhere")); }

static void set_up(void) {
    char link[64];
    file = open(directory, O_TMPFILE | O_RDWR, 0600);
    REQUIRE(file >= 0 && mkdir(path_of("elsewhere"), 0700) == 0);
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    REQUIRE(linkat(AT_FDCWD, link, AT_FDCWD, path_of("elsewhere/name"), AT_SYMLINK_FOLLOW) == 0);
    at_end(remove_all);
}

static void check(void) {
    int other = open(path_of("elsewhere/name"), O_RDONLY);
    char byte;
    REQUIRE(other >= 0 && pwrite(file, "w", 1, 0) == 1 && pread(other, &byte, 1, 0) == 1 && byte == 'w');
}
