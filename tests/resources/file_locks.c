/* Locks of all three kinds on files of the program, and POSIX locks on a named pipe, a pipe and a socket. They still
 * exclude other processes. One of the locked files is also in flight in a socket. */
#include "resource.h"

#include <sys/file.h>
#include <sys/socket.h>

static int whole, records, description, named_pipe, pipe_ends[2], sockets[2];

/* Opens a file again, and leaves it in flight. */
static void send_file(const char *path) {
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec text = {.iov_base = "f", .iov_len = 1};
    struct msghdr message = {.msg_iov = &text, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    int file = open(path, O_RDWR);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof file), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &file, sizeof file);
    REQUIRE(file >= 0 && sendmsg(sockets[0], &message, 0) == 1 && close(file) == 0);
}

static void set_up_others(void) {
    struct flock part = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 100, .l_len = 50};
    REQUIRE(mkfifo(path_of("fifo"), 0600) == 0 && (named_pipe = open(path_of("fifo"), O_RDWR)) >= 0);
    REQUIRE(pipe(pipe_ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    for (int i = 0; i < 3; i++) {
        int fd = (int[]){named_pipe, pipe_ends[1], sockets[1]}[i];
        REQUIRE(fcntl(fd, F_SETLK, &part) == 0, "fd %d", fd);
    }
}

static void set_up(void) {
    set_up_others();
    whole = open(path_of("flock"), O_CREAT | O_RDWR, 0600), records = open(path_of("posix"), O_CREAT | O_RDWR, 0600);
    description = open(path_of("ofd"), O_CREAT | O_RDWR, 0600);
    struct flock part = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 100, .l_len = 50};
    struct flock reading = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 0};
    send_file(path_of("posix"));
    REQUIRE(flock(whole, LOCK_EX) == 0 && fcntl(records, F_SETLK, &part) == 0 && fcntl(description, F_OFD_SETLK, &reading) == 0);
}

/* Returns the type of the lock that conflicts with a lock of another process, or F_UNLCK. */
static int against(const char *path, short type, off_t start, off_t bytes) {
    struct flock wanted = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = bytes};
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        int other = open(path, O_RDWR);
        _exit(other >= 0 && fcntl(other, F_GETLK, &wanted) == 0 ? wanted.l_type : 99);
    }
    REQUIRE(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void check_others(void) {
    for (int i = 0; i < 3; i++) {
        int status, fd = (int[]){named_pipe, pipe_ends[1], sockets[1]}[i];
        struct flock wanted = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 149, .l_len = 1};
        pid_t pid = fork();
        if (pid == 0) _exit(fcntl(fd, F_GETLK, &wanted) == 0 && wanted.l_type == F_WRLCK ? 0 : 1);
        REQUIRE(waitpid(pid, &status, 0) == pid && status == 0, "POSIX, fd %d: not held", fd);
    }
}

static void check(void) {
    check_others();
    int other = open(path_of("flock"), O_RDWR);
    REQUIRE(flock(other, LOCK_SH | LOCK_NB) == -1 && errno == EWOULDBLOCK, "flock(2): not held");
    REQUIRE(against(path_of("posix"), F_RDLCK, 149, 1) == F_WRLCK, "POSIX: not held");
    REQUIRE(against(path_of("posix"), F_WRLCK, 150, 1) == F_UNLCK && against(path_of("posix"), F_WRLCK, 99, 1) == F_UNLCK);
    REQUIRE(against(path_of("ofd"), F_WRLCK, 1000000, 1) == F_RDLCK, "open file description: not held");
    REQUIRE(against(path_of("ofd"), F_RDLCK, 1000000, 1) == F_UNLCK && against(path_of("ofd"), F_WRLCK, 0, 10) == F_UNLCK);
    REQUIRE(flock(whole, LOCK_UN) == 0 && flock(other, LOCK_EX | LOCK_NB) == 0);
    /* Releases a part of a lock, locks another part, and turns a part of a read lock into a write lock. */
    struct flock half = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = 100, .l_len = 20};
    struct flock more = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 300, .l_len = 5};
    struct flock writing = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 5};
    REQUIRE(fcntl(records, F_SETLK, &half) == 0 && fcntl(records, F_SETLK, &more) == 0 && fcntl(description, F_OFD_SETLK, &writing) == 0);
    REQUIRE(against(path_of("posix"), F_WRLCK, 119, 1) == F_UNLCK && against(path_of("posix"), F_RDLCK, 120, 1) == F_WRLCK);
    REQUIRE(against(path_of("posix"), F_RDLCK, 304, 1) == F_WRLCK && against(path_of("ofd"), F_RDLCK, 12, 1) == F_WRLCK);
    REQUIRE(close(description) == 0 && against(path_of("ofd"), F_WRLCK, 0, 0) == F_UNLCK, "a lock outlives its file");
}
