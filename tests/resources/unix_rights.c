/* Descriptors in flight in Unix sockets (SCM_RIGHTS), most of them open nowhere else: the end of a pipe after plain
 * bytes of a stream, a file with a shared offset, a memfd and an eventfd. Also a timerfd, a directory, the standard
 * output, a socket in flight in itself, a socket with another in flight, and credentials (SCM_CREDENTIALS). */
#include "resource.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#define FDS_MAX 8

static int stream[2], messages[2], known[2], ends[2], file, inner_end;

static void send_with(int to, const char *text, const int *fds, int count) {
    char control[CMSG_SPACE(FDS_MAX * sizeof(int))] = {0};
    size_t bytes = sizeof(int) * (size_t)count;
    struct iovec vector = {.iov_base = (char *)text, .iov_len = strlen(text)};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(bytes)};
    *CMSG_FIRSTHDR(&message) = (struct cmsghdr){.cmsg_len = CMSG_LEN(bytes), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), fds, bytes);
    REQUIRE(sendmsg(to, &message, 0) == (ssize_t)strlen(text));
}

/* Receives up to `room` bytes, which must be `text`, with `count` descriptors. */
static void receive_with(int from, size_t room, const char *text, int *fds, int count) {
    char control[CMSG_SPACE(FDS_MAX * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))] = {0}, bytes[64] = {0};
    struct iovec vector = {.iov_base = bytes, .iov_len = room};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t received = recvmsg(from, &message, MSG_DONTWAIT);
    REQUIRE(received == (ssize_t)strlen(text) && memcmp(bytes, text, strlen(text)) == 0, "%zd bytes, not %s", received, text);
    int found = 0;
    for (struct cmsghdr *one = CMSG_FIRSTHDR(&message); one; one = CMSG_NXTHDR(&message, one)) {
        if (one->cmsg_type != SCM_RIGHTS) continue;
        found = (int)((one->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        REQUIRE(found == count, "%d descriptors", found);
        memcpy(fds, CMSG_DATA(one), sizeof(int) * (size_t)count);
    }
    REQUIRE(found == count, "%d descriptors with %s", found, text);
}

static void set_up(void) {
    int on = 1, memory, counter, timer, place, inner[2];
    struct itimerspec hour = {.it_value = {.tv_sec = 3600}};
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, stream) == 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, messages) == 0);
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, known) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, inner) == 0);
    REQUIRE(pipe(ends) == 0 && write(ends[1], "piped", 5) == 5);
    file = open(path_of("file"), O_RDWR | O_CREAT, 0600);
    memory = memfd_create("on its way", 0), counter = eventfd(7, EFD_NONBLOCK);
    timer = timerfd_create(CLOCK_MONOTONIC, 0), place = open(directory, O_RDONLY | O_DIRECTORY);
    REQUIRE(file >= 0 && memory >= 0 && counter >= 0 && timer >= 0 && place >= 0);
    REQUIRE(write(file, "0123456789", 10) == 10 && lseek(file, 4, SEEK_SET) == 4);
    REQUIRE(pwrite(memory, "memory", 6, 5000) == 6 && timerfd_settime(timer, 0, &hour, NULL) == 0);
    /* Bytes before, with, and after a descriptor. */
    REQUIRE(write(stream[0], "before", 6) == 6);
    send_with(stream[0], "with", ends, 1);
    REQUIRE(write(stream[0], "behind", 6) == 6);
    send_with(stream[0], "last", (int[]){STDOUT_FILENO, file}, 2);
    /* Sends a socket that has descriptors in flight and is open nowhere else. */
    send_with(inner[0], "in", (int[]){memory, counter}, 2);
    send_with(messages[0], "nested", (int[]){inner[1], timer, place}, 3);
    send_with(messages[1], "itself", messages, 2);
    inner_end = inner[0];
    REQUIRE(close(ends[0]) == 0 && close(memory) == 0 && close(counter) == 0 && close(inner[1]) == 0);
    REQUIRE(close(timer) == 0 && close(place) == 0);
    /* With SO_PASSCRED, the message has the credentials of its sender. */
    REQUIRE(setsockopt(known[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0 && write(known[0], "whose", 5) == 5);
}

static void check_stream(void) {
    int fds[2];
    char text[16] = {0};
    struct stat one, other;
    receive_with(stream[1], 3, "bef", fds, 0);
    receive_with(stream[1], 3, "ore", fds, 0);
    receive_with(stream[1], 2, "wi", fds, 1);
    REQUIRE(read(fds[0], text, 5) == 5 && strcmp(text, "piped") == 0);
    REQUIRE(write(ends[1], "x", 1) == 1 && read(fds[0], text, 1) == 1 && text[0] == 'x');
    receive_with(stream[1], 2, "th", fds, 0);
    receive_with(stream[1], 64, "behindlast", fds, 2);
    REQUIRE(fstat(fds[0], &one) == 0 && fstat(STDOUT_FILENO, &other) == 0 && one.st_ino == other.st_ino);
    REQUIRE(read(fds[1], text, 2) == 2 && text[0] == '4' && lseek(file, 0, SEEK_CUR) == 6, "the file offset is not shared");
}

static void check_nested(void) {
    int fds[3], inner[2];
    char text[16] = {0};
    uint64_t count;
    struct itimerspec left;
    struct stat place;
    receive_with(messages[1], 64, "nested", fds, 3);
    receive_with(fds[0], 64, "in", inner, 2);
    REQUIRE(pread(inner[0], text, 6, 5000) == 6 && strcmp(text, "memory") == 0);
    REQUIRE(read(inner[1], &count, sizeof count) == sizeof count && count == 7);
    REQUIRE(write(inner_end, "y", 1) == 1 && read(fds[0], text, 1) == 1 && text[0] == 'y');
    REQUIRE(timerfd_gettime(fds[1], &left) == 0 && left.it_value.tv_sec > 3000);
    REQUIRE(fstat(fds[2], &place) == 0 && S_ISDIR(place.st_mode));
    receive_with(messages[0], 64, "itself", fds, 2);
    REQUIRE(write(fds[0], "z", 1) == 1 && read(messages[1], text, 2) == 1 && text[0] == 'z');
}

static void check(void) {
    char control[CMSG_SPACE(sizeof(struct ucred))], byte;
    struct iovec vector = {.iov_base = (char[8]){0}, .iov_len = 8};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct ucred sender;
    check_stream();
    check_nested();
    REQUIRE(recvmsg(known[1], &message, MSG_DONTWAIT) == 5 && CMSG_FIRSTHDR(&message)->cmsg_type == SCM_CREDENTIALS);
    memcpy(&sender, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof sender);
    REQUIRE(sender.pid == getpid() && sender.uid == getuid() && sender.gid == getgid(), "process %d", sender.pid);
    REQUIRE(recv(stream[1], &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
}
