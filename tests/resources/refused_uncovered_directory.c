/* An open and current directory on a detached mount (MNT_DETACH): the kernel shows the path of the root directory for
 * it. */
#include "resource.h"

#include <sys/mount.h>

static int place;

static void set_up(void) {
    const char *path = path_of("place");
    REQUIRE(mkdir(path, 0700) == 0 && mount("own", path, "tmpfs", 0, "size=64k") == 0);
    place = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    REQUIRE(umount2(path, MNT_DETACH) == 0 && place >= 0 && fchdir(place) == 0 && mkdir("mark", 0700) == 0);
}

static void check(void) { REQUIRE(faccessat(place, "mark", F_OK, 0) == 0 && access("mark", F_OK) == 0); }
