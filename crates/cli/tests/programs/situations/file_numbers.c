/* Compares stat(2) in parent and child, for a directory and a file in it. The device numbers differ; the times are
 * equal. In the child, the open file is the file at the path.
 * usage: file_numbers DIRECTORY
 */
#include "../forked.h"

#include <sys/stat.h>

static struct stat status_of(const char *path) {
    struct stat status;
    REQUIRE(stat(path, &status) == 0, "%s", path);
    return status;
}

static int same_time(const struct stat *one, const struct stat *other) {
    return one->st_mtim.tv_sec == other->st_mtim.tv_sec && one->st_mtim.tv_nsec == other->st_mtim.tv_nsec;
}

int main(int count, char **arguments) {
    REQUIRE(count == 2, "usage: file_numbers DIRECTORY");
    char payload[PAYLOAD_BYTES_MAX], path[512];
    snprintf(path, sizeof path, "%s/file", arguments[1]);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0, "%s", path);
    struct stat of_directory = status_of(arguments[1]), of_file = status_of(path), of_fd;
    ready(0);
    await_fork(payload);

    struct stat directory = status_of(arguments[1]), file = status_of(path);
    REQUIRE(directory.st_dev != of_directory.st_dev && file.st_dev != of_file.st_dev, "the parent's device");
    REQUIRE(same_time(&directory, &of_directory) && same_time(&file, &of_file), "other times");
    REQUIRE(fstat(fd, &of_fd) == 0 && of_fd.st_dev == file.st_dev && of_fd.st_ino == file.st_ino, "two files");
    finish(payload, 0);
}
