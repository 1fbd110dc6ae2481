/* O_PATH descriptors of a file, a directory, a symbolic link and a named pipe. */
#include "resource.h"

static int file, folder, link_itself, pipe_itself;

static void set_up(void) {
    REQUIRE(mkdir(path_of("folder"), 0700) == 0 && symlink("nowhere", path_of("link")) == 0 && mkfifo(path_of("fifo"), 0600) == 0);
    int written = open(path_of("folder/file"), O_CREAT | O_WRONLY, 0600);
    REQUIRE(write(written, "text", 4) == 4 && close(written) == 0);
    file = open(path_of("folder/file"), O_PATH | O_CLOEXEC), folder = open(path_of("folder"), O_PATH | O_DIRECTORY);
    link_itself = open(path_of("link"), O_PATH | O_NOFOLLOW), pipe_itself = open(path_of("fifo"), O_PATH);
    REQUIRE(file >= 0 && folder >= 0 && link_itself >= 0 && pipe_itself >= 0);
}

static void check(void) {
    struct stat status;
    char text[16] = {0}, path[64];
    REQUIRE(read(file, text, 1) == -1 && errno == EBADF && (fcntl(file, F_GETFL) & O_PATH), "it is not an O_PATH one");
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    int opened = open(path, O_RDONLY);
    REQUIRE(opened >= 0 && read(opened, text, sizeof text) == 4 && strcmp(text, "text") == 0);
    REQUIRE(fstatat(folder, "file", &status, 0) == 0 && status.st_size == 4);
    REQUIRE(readlinkat(link_itself, "", text, sizeof text) == 7 && memcmp(text, "nowhere", 7) == 0);
    REQUIRE(fstat(pipe_itself, &status) == 0 && S_ISFIFO(status.st_mode));
}
