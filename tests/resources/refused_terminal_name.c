/* A terminal that was opened below another directory, as in a chroot. A child finds no terminal at that path: not
 * carried. */
#include "resource.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/sysmacros.h>
#include <termios.h>

static int master;

static void set_up(void) {
    REQUIRE(unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    REQUIRE(mkdir(path_of("dev"), 0755) == 0 && mkdir(path_of("dev/pts"), 0755) == 0);
    REQUIRE(mount("/dev/pts", path_of("dev/pts"), NULL, MS_BIND, NULL) == 0 && mknod(path_of("dev/ptmx"), S_IFCHR | 0666, makedev(5, 2)) == 0);
    master = open(path_of("dev/ptmx"), O_RDWR | O_NOCTTY);
    REQUIRE(master >= 0);
}

static void check(void) {
    struct termios settings;
    REQUIRE(tcgetattr(master, &settings) == 0);
}
