/* A process in its own mount namespace, as services use them. The node has another file at the path of its open and
 * mapped file. */
#include "resource.h"

#include <sched.h>
#include <sys/mount.h>

static int file;
static char *view;
static char path[PATH_BYTES_MAX];

static void put(const char *contents) {
    file = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    REQUIRE(file >= 0 && write(file, contents, strlen(contents)) == (ssize_t)strlen(contents), "%s", path);
}

static void set_up(void) {
    const char *place = path_of("place");
    snprintf(path, sizeof path, "%s/file", place);
    REQUIRE(mkdir(place, 0700) == 0);
    put("the node's"), close(file);
    REQUIRE(unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    REQUIRE(mount("own", place, "tmpfs", 0, "size=64k") == 0);
    put("its own");
    view = (char *)mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    REQUIRE(view != MAP_FAILED && lseek(file, 4, SEEK_SET) == 4);
}

static void check(void) {
    char text[16] = {0};
    struct stat status;
    off_t offset = lseek(file, 0, SEEK_CUR);
    REQUIRE(offset == 4 && read(file, text, sizeof text - 1) == 3 && strcmp(text, "own") == 0, "%s", text);
    REQUIRE(lseek(file, 4, SEEK_SET) == 4 && memcmp(view, "its own", 7) == 0);
    REQUIRE(fstat(file, &status) == 0 && (status.st_mode & 0777) == 0600);
    int other = open(path, O_RDONLY | O_CLOEXEC);
    memset(text, 0, sizeof text);
    REQUIRE(other >= 0 && read(other, text, sizeof text - 1) > 0 && close(other) == 0, "%s", path);
    REQUIRE(strcmp(text, is_child ? "the node's" : "its own") == 0, "%s", text);
}
