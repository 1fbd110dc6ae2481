/* Named pipes that were deleted while open: contents, capacity, and one with only a writer. The name stays unused. */
#include "resource.h"

#define CAPACITY 8192

static int reader, writer, both;

static void set_up(void) {
    REQUIRE(mkfifo(path_of("fifo"), 0600) == 0 && mkfifo(path_of("both"), 0600) == 0);
    reader = open(path_of("fifo"), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    writer = open(path_of("fifo"), O_WRONLY);
    both = open(path_of("both"), O_RDWR);
    REQUIRE(reader >= 0 && both >= 0 && fcntl(writer, F_SETPIPE_SZ, CAPACITY) == CAPACITY);
    REQUIRE(write(writer, "in the pipe", 11) == 11 && write(both, "there", 5) == 5);
    REQUIRE(unlink(path_of("fifo")) == 0 && unlink(path_of("both")) == 0);
}

static void check(void) {
    struct stat status;
    char text[32] = {0};
    REQUIRE(fstat(reader, &status) == 0 && S_ISFIFO(status.st_mode) && access(path_of("fifo"), F_OK) == -1);
    REQUIRE(fcntl(reader, F_GETPIPE_SZ) == CAPACITY && fcntl(reader, F_GETFD) == FD_CLOEXEC && fcntl(writer, F_GETFD) == 0);
    REQUIRE(fcntl(reader, F_GETFL) & O_NONBLOCK && !(fcntl(writer, F_GETFL) & O_NONBLOCK));
    REQUIRE(read(reader, text, sizeof text) == 11 && strcmp(text, "in the pipe") == 0, "%s", text);
    REQUIRE(write(both, " too", 4) == 4 && read(both, text, sizeof text) == 9 && memcmp(text, "there too", 9) == 0, "%s", text);
    REQUIRE(write(writer, "x", 1) == 1 && read(reader, text, sizeof text) == 1);
    close(writer);
    REQUIRE(read(reader, text, sizeof text) == 0, "a write end is still open");
}
