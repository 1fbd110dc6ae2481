/* An open and mapped file on a detached mount (MNT_DETACH). Another file has its path now. */
#include "resource.h"

#include <sys/mount.h>

static int file;
static char *view;

static void set_up(void) {
    const char *place = path_of("place");
    REQUIRE(mkdir(place, 0700) == 0 && mount("own", place, "tmpfs", 0, "size=64k") == 0);
    file = open(path_of("place/passwd"), O_CREAT | O_RDWR | O_CLOEXEC, 0640);
    REQUIRE(umount2(place, MNT_DETACH) == 0 && file >= 0 && write(file, "its own", 7) == 7);
    view = (char *)mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    REQUIRE(view != MAP_FAILED && lseek(file, 4, SEEK_SET) == 4);
}

static void check(void) {
    char text[16] = {0};
    struct stat status;
    REQUIRE(read(file, text, sizeof text - 1) == 3 && strcmp(text, "own") == 0 && lseek(file, 4, SEEK_SET) == 4, "%s", text);
    REQUIRE(memcmp(view, "its own", 7) == 0 && fstat(file, &status) == 0 && (status.st_mode & 0777) == 0640);
    view[0] = 'I';
    REQUIRE(pread(file, text, 7, 0) == 7 && memcmp(text, "Its own", 7) == 0);
}
