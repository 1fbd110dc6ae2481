/* A named pipe with both ends in the program: contents, capacity, and a path that still names it. */
#include "resource.h"

#define CAPACITY 8192

static int reader, writer;

static void set_up(void) {
    REQUIRE(mkfifo(path_of("fifo"), 0600) == 0);
    reader = open(path_of("fifo"), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    writer = open(path_of("fifo"), O_WRONLY);
    REQUIRE(reader >= 0 && writer >= 0 && fcntl(writer, F_SETPIPE_SZ, CAPACITY) == CAPACITY);
    REQUIRE(write(writer, "in the pipe", 11) == 11);
}

static void check(void) {
    struct stat by_number, by_path;
    char text[32] = {0};
    REQUIRE(fstat(reader, &by_number) == 0 && stat(path_of("fifo"), &by_path) == 0 && S_ISFIFO(by_number.st_mode));
    REQUIRE(by_number.st_ino == by_path.st_ino && by_number.st_dev == by_path.st_dev, "the path names another file");
    REQUIRE(fcntl(reader, F_GETPIPE_SZ) == CAPACITY && fcntl(reader, F_GETFL) & O_NONBLOCK && !(fcntl(writer, F_GETFL) & O_NONBLOCK));
    REQUIRE(read(reader, text, sizeof text) == 11 && strcmp(text, "in the pipe") == 0, "%s", text);
    int third = open(path_of("fifo"), O_WRONLY | O_NONBLOCK);
    REQUIRE(third >= 0 && write(third, "x", 1) == 1 && read(reader, text, sizeof text) == 1);
    close(third), close(writer);
    REQUIRE(read(reader, text, sizeof text) == 0, "a write end is still open");
}
