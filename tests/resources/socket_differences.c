/* State of sockets that differs in a child, as docs/process-state.md says: the mark of urgent data that was read, the time
 * stamps of messages that wait, SO_COOKIE, and the address of a TCP socket that is disconnected later. */
#include "resource.h"

#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

static int stream[2], messages[2], client;
static uint64_t cookie, sent_ns;

static uint64_t cookie_of(int fd) {
    uint64_t value = 0;
    socklen_t length = sizeof value;
    REQUIRE(getsockopt(fd, SOL_SOCKET, SO_COOKIE, &value, &length) == 0);
    return value;
}

static void set_up(void) {
    int on = 1;
    char byte;
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, stream) == 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, messages) == 0);
    REQUIRE(send(stream[0], "ab", 2, 0) == 2 && send(stream[0], "!", 1, MSG_OOB) == 1 && send(stream[0], "cd", 2, 0) == 2);
    REQUIRE(recv(stream[1], &byte, 1, MSG_OOB) == 1 && byte == '!');
    REQUIRE(setsockopt(messages[1], SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on) == 0 && send(messages[0], "m", 1, 0) == 1);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    client = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0);
    REQUIRE(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    REQUIRE(connect(client, (struct sockaddr *)&address, length) == 0 && accept(listener, NULL, NULL) >= 0);
    cookie = cookie_of(stream[0]);
    sent_ns = now_ns(CLOCK_REALTIME);
}

static int is_at_mark(void) {
    int at_mark = -1;
    REQUIRE(ioctl(stream[1], SIOCATMARK, &at_mark) == 0);
    return at_mark;
}

static void check(void) {
    char got[8], control[256];
    struct iovec part = {.iov_base = got, .iov_len = sizeof got};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct timespec stamp;
    ssize_t bytes = recv(stream[1], got, sizeof got, MSG_DONTWAIT);
    REQUIRE(bytes == (is_child ? 4 : 2) && is_at_mark() == !is_child, "%zd bytes, mark %d", bytes, is_at_mark());
    REQUIRE(recvmsg(messages[1], &message, MSG_DONTWAIT) == 1 && got[0] == 'm');
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    REQUIRE(header && header->cmsg_type == SCM_TIMESTAMPNS);
    memcpy(&stamp, CMSG_DATA(header), sizeof stamp);
    uint64_t stamp_ns = stamp.tv_sec * 1000000000ULL + stamp.tv_nsec;
    REQUIRE((stamp_ns > sent_ns) == is_child && stamp_ns <= now_ns(CLOCK_REALTIME), "stamp %lu, sent before %lu", stamp_ns, sent_ns);
    REQUIRE((cookie_of(stream[0]) == cookie) == !is_child);
    struct sockaddr_in now, nothing = {.sin_family = AF_UNSPEC};
    socklen_t length = sizeof now;
    REQUIRE(connect(client, (struct sockaddr *)&nothing, sizeof nothing) == 0);
    REQUIRE(getsockname(client, (struct sockaddr *)&now, &length) == 0);
    REQUIRE((now.sin_addr.s_addr == htonl(INADDR_LOOPBACK)) == is_child, "address %x", ntohl(now.sin_addr.s_addr));
}
