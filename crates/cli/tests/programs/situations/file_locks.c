/* Locks of all three kinds on files that parent and child share. The child starts only after the parent has ended. The
 * child then has the locks, and no other process can get them.
 * usage: file_locks FLOCK_FILE POSIX_FILE OFD_FILE
 */
#include "../forked.h"

#include <sys/file.h>

static int open_file(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    REQUIRE(fd >= 0, "%s", path);
    return fd;
}

/* Requests a record lock. Returns whether it was granted. */
static int lock_record(int fd, int command) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(fd, command, &whole) == 0) return 1;
    REQUIRE(errno == EAGAIN || errno == EACCES);
    return 0;
}

static int lock_file(int fd) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return 1;
    REQUIRE(errno == EWOULDBLOCK);
    return 0;
}

int main(int count, char **arguments) {
    REQUIRE(count == 4, "usage: file_locks FLOCK_FILE POSIX_FILE OFD_FILE");
    int by_flock = open_file(arguments[1]), by_process = open_file(arguments[2]), by_description = open_file(arguments[3]);
    REQUIRE(lock_file(by_flock) && lock_record(by_process, F_SETLK) && lock_record(by_description, F_OFD_SETLK));

    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);

    REQUIRE(!lock_file(open_file(arguments[1])), "flock(2): the child does not have the lock");
    REQUIRE(!lock_record(open_file(arguments[2]), F_OFD_SETLK), "POSIX: the child does not have the lock");
    REQUIRE(!lock_record(open_file(arguments[3]), F_OFD_SETLK), "open file description: the child does not have the lock");
    finish(payload, 0);
}
