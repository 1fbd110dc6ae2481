/* Pairs of Unix sockets that keep message boundaries, with messages in flight, one of them empty. Some receive nothing more:
 * the other end is closed or has shut down sending, or the end itself has shut down receiving. */
#include "resource.h"

#include <sys/socket.h>

enum { CLOSED, SHUT_BY_OTHER, SHUT_BY_ITSELF, ENDS };

static int datagram[2], packet[2], ended[ENDS], other[ENDS], deaf[2];
static ino_t passed;

/* Sends an empty message with a descriptor. */
static void send_file(int from, int file) {
    char control[CMSG_SPACE(sizeof file)] = {0};
    struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof file), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &file, sizeof file);
    REQUIRE(sendmsg(from, &message, 0) == 0);
}

/* Receives a message. Returns its number of bytes; -1 without one. Stores the descriptor that it passes, or -1. */
static ssize_t receive(int fd, char *text, size_t bytes, int *file) {
    char control[CMSG_SPACE(sizeof *file)];
    struct iovec part = {text, bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t received = recvmsg(fd, &message, MSG_DONTWAIT);
    *file = -1;
    if (received >= 0 && CMSG_FIRSTHDR(&message)) memcpy(file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof *file);
    return received;
}

static void make_ended(int end) {
    int ends[2], null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct stat status;
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0 && null >= 0 && fstat(null, &status) == 0);
    ended[end] = ends[0], other[end] = ends[1], passed = status.st_ino;
    REQUIRE(write(ends[1], "", 0) == 0 && write(ends[1], "two", 3) == 3 && write(ends[1], "", 0) == 0);
    send_file(ends[1], null);
    REQUIRE(close(null) == 0);
    if (end == CLOSED) REQUIRE(close(ends[1]) == 0);
    if (end == SHUT_BY_OTHER) REQUIRE(shutdown(ends[1], SHUT_WR) == 0);
    if (end == SHUT_BY_ITSELF) REQUIRE(shutdown(ends[0], SHUT_RD) == 0);
}

static void set_up(void) {
    REQUIRE(socketpair(AF_UNIX, SOCK_DGRAM, 0, datagram) == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, packet) == 0);
    REQUIRE(write(datagram[0], "one", 3) == 3 && write(datagram[0], "", 0) == 0 && write(datagram[0], "three", 5) == 5);
    REQUIRE(write(packet[1], "first", 5) == 5 && write(packet[1], "2", 1) == 1);
    for (int end = 0; end < ENDS; end++) make_ended(end);
    REQUIRE(socketpair(AF_UNIX, SOCK_DGRAM, 0, deaf) == 0 && write(deaf[1], "", 0) == 0 && write(deaf[1], "two", 3) == 3);
    REQUIRE(shutdown(deaf[0], SHUT_RD) == 0);
}

static void check_ended(int end) {
    char text[8];
    int file;
    struct stat status;
    REQUIRE(receive(ended[end], text, sizeof text, &file) == 0 && file < 0, "end %d", end);
    REQUIRE(receive(ended[end], text, sizeof text, &file) == 3 && file < 0, "end %d lacks the second message", end);
    REQUIRE(receive(ended[end], text, sizeof text, &file) == 0 && file < 0, "end %d", end);
    REQUIRE(receive(ended[end], text, sizeof text, &file) == 0 && file >= 0, "end %d lacks the last message", end);
    REQUIRE(fstat(file, &status) == 0 && status.st_ino == passed);
    REQUIRE(receive(ended[end], text, sizeof text, &file) == 0 && file < 0, "end %d", end);
}

static void check(void) {
    char text[64];
    REQUIRE(recv(datagram[1], text, sizeof text, MSG_DONTWAIT) == 3 && memcmp(text, "one", 3) == 0);
    REQUIRE(recv(datagram[1], text, sizeof text, MSG_DONTWAIT) == 0, "the empty message is lost");
    REQUIRE(recv(datagram[1], text, sizeof text, MSG_DONTWAIT) == 5 && memcmp(text, "three", 5) == 0);
    REQUIRE(recv(datagram[1], text, sizeof text, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    REQUIRE(read(packet[0], text, sizeof text) == 5 && read(packet[0], text, sizeof text) == 1 && text[0] == '2');
    REQUIRE(write(packet[0], "back", 4) == 4 && read(packet[1], text, sizeof text) == 4);
    REQUIRE(write(datagram[1], "back", 4) == 4 && read(datagram[0], text, sizeof text) == 4);
    for (int end = 0; end < ENDS; end++) check_ended(end);
    REQUIRE(recv(deaf[0], text, sizeof text, MSG_DONTWAIT) == 0, "the empty message is lost");
    REQUIRE(recv(deaf[0], text, sizeof text, MSG_DONTWAIT) == 3 && recv(deaf[0], text, sizeof text, MSG_DONTWAIT) == -1 && errno == EAGAIN);
}
