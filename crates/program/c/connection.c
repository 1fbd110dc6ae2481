/* A connection to the node's daemon: finds its socket, sends a request, waits for the reply. */
#include "library.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define DEFAULT_RUN_DIR "/run/farfork"

/* Time limit for a reply, in milliseconds. It is far above the daemon's own limit for a capture, after which the daemon
** replies with a failure. */
#define REPLY_MS_MAX 150000

/* Writes the path of the daemon's socket: FARFORK_PROGRAM_SOCKET if set; else program.sock in the directory of
** FARFORK_SOCKET, if set; else program.sock in the run directory (FARFORK_RUN_DIR or /run/farfork). If the run directory
** lacks program.sock but has n1/program.sock, writes the path of the latter, the socket of node n1. */
static int find_socket(char *path, size_t bytes) {
    const char *value = getenv("FARFORK_PROGRAM_SOCKET");
    if (value) return snprintf(path, bytes, "%s", value);
    value = getenv("FARFORK_SOCKET");
    const char *slash = value ? strrchr(value, '/') : NULL;
    if (slash) return snprintf(path, bytes, "%.*s/program.sock", (int)(slash - value), value);
    const char *run_dir = getenv("FARFORK_RUN_DIR");
    if (!run_dir) run_dir = DEFAULT_RUN_DIR;
    int length = snprintf(path, bytes, "%s/program.sock", run_dir);
    if (length < (int)bytes && access(path, F_OK) < 0) {
        char first[sizeof((struct sockaddr_un *)0)->sun_path];
        snprintf(first, sizeof first, "%s/n1/program.sock", run_dir);
        if (access(first, F_OK) == 0) return snprintf(path, bytes, "%s", first);
    }
    return length;
}

/* Moves a descriptor above 2. Descriptors 0 to 2 are standard streams, and a child gets its own standard streams. */
static int move_above_stdio(int fd) {
    if (fd < 0 || fd > 2) return fd;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, 3), error = errno;
    close(fd);
    errno = error;
    return moved;
}

int connection_open(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (find_socket(address.sun_path, sizeof address.sun_path) >= (int)sizeof address.sun_path)
        return say_errno(ENAMETOOLONG, "node at %s…: the path of its socket is too long", address.sun_path);
    int connection = move_above_stdio(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (connection < 0) return say_errno(errno, "a socket: %s", strerror(errno));
    if (connect(connection, (struct sockaddr *)&address, sizeof address) < 0) {
        say_errno(errno,
                  "node at %s: %s; start one with `farfork node` or `farfork up`, or set its path in "
                  "FARFORK_PROGRAM_SOCKET",
                  address.sun_path, strerror(errno));
        int error = errno;
        close(connection);
        errno = error;
        return -1;
    }
    return connection;
}

int connection_send(int connection, struct farfork_header *request, size_t bytes) {
    struct stat status;
    if (fstat(connection, &status) < 0) return say_errno(errno, "the connection: %s", strerror(errno));
    request->magic = FARFORK_MAGIC;
    request->version = FARFORK_PROTOCOL_VERSION;
    request->socket_inode = status.st_ino;
    ssize_t sent;
    do sent = send(connection, request, bytes, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? say_errno(errno, "the node's daemon: %s", strerror(errno)) : 0;
}

static void take_descriptors(struct msghdr *message, int fds[FARFORK_FDS_MAX]) {
    for (struct cmsghdr *control = CMSG_FIRSTHDR(message); control; control = CMSG_NXTHDR(message, control)) {
        if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(fds, CMSG_DATA(control), (count < FARFORK_FDS_MAX ? count : FARFORK_FDS_MAX) * sizeof(int));
    }
}

/* The parent and each child resume from a checkpoint in poll() or recvmsg() below. */
int connection_receive(int connection, union farfork_message *reply, int fds[FARFORK_FDS_MAX]) {
    struct pollfd ready = {.fd = connection, .events = POLLIN};
    union {
        struct cmsghdr aligned;
        char bytes[CMSG_SPACE(FARFORK_FDS_MAX * sizeof(int))];
    } control;
    struct iovec place = {.iov_base = reply, .iov_len = sizeof *reply};
    struct msghdr message = {
        .msg_iov = &place, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t received;
    for (int i = 0; i < FARFORK_FDS_MAX; i++) fds[i] = -1;
    do {
        int count = poll(&ready, 1, REPLY_MS_MAX);
        if (count == 0) return say_errno(ETIMEDOUT, "the node's daemon: no answer for %d s", REPLY_MS_MAX / 1000);
        received = count < 0 ? -1 : recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
    } while (received < 0 && errno == EINTR);
    if (received < 0) return say_errno(errno, "the node's daemon: %s", strerror(errno));
    if (received == 0) return say_errno(ECONNRESET, "the node's daemon: it ended before it answered; see its log");
    take_descriptors(&message, fds);
    if ((size_t)received < sizeof reply->header || reply->header.magic != FARFORK_MAGIC ||
        reply->header.version != FARFORK_PROTOCOL_VERSION)
        return say_errno(EPROTO, "the node's daemon: it uses another protocol version; use the same release of both");
    return 0;
}
