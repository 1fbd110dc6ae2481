/* Unix connections whose peers were closed with unread data. The received data, with a descriptor in flight, is
 * followed by one error. */
#include "resource.h"

#include <sys/socket.h>

static const struct {
    int kind, has_data, has_file;
} cases[] = {{SOCK_STREAM, 0, 0}, {SOCK_STREAM, 1, 0}, {SOCK_STREAM, 1, 1}, {SOCK_SEQPACKET, 0, 0}};

#define COUNT (sizeof cases / sizeof cases[0])

static int sockets[COUNT];

/* Sends four bytes with a descriptor of /dev/null. */
static void send_file(int from) {
    char control[CMSG_SPACE(sizeof from)] = {0};
    struct iovec piece = {(void *)"data", 4};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof from), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    memcpy(CMSG_DATA(header), &null, sizeof null);
    REQUIRE(null >= 0 && sendmsg(from, &message, 0) == 4 && close(null) == 0);
}

static void set_up(void) {
    for (size_t i = 0; i < COUNT; i++) {
        int ends[2];
        REQUIRE(socketpair(AF_UNIX, cases[i].kind | SOCK_CLOEXEC, 0, ends) == 0 && write(ends[0], "unread", 6) == 6);
        if (cases[i].has_file)
            send_file(ends[1]);
        else if (cases[i].has_data)
            REQUIRE(write(ends[1], "data", 4) == 4);
        REQUIRE(close(ends[1]) == 0);
        sockets[i] = ends[0];
    }
}

static void check(void) {
    char text[8];
    for (size_t i = 0; i < COUNT; i++) {
        REQUIRE(!cases[i].has_data || (read(sockets[i], text, sizeof text) == 4 && memcmp(text, "data", 4) == 0), "case %zu", i);
        REQUIRE(read(sockets[i], text, sizeof text) == -1 && errno == ECONNRESET, "case %zu", i);
        REQUIRE(read(sockets[i], text, sizeof text) == 0, "case %zu", i);
    }
}
