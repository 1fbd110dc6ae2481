/* A UDP socket that queues its errors (IP_RECVERR), with an error in the queue. Not carried. */
#include "resource.h"

#include <netinet/in.h>
#include <sys/socket.h>

static int datagrams;

static void set_up(void) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    datagrams = socket(AF_INET, SOCK_DGRAM, 0);
    int closed = socket(AF_INET, SOCK_DGRAM, 0);
    REQUIRE(bind(closed, (struct sockaddr *)&name, length) == 0);
    REQUIRE(getsockname(closed, (struct sockaddr *)&name, &length) == 0 && close(closed) == 0);
    REQUIRE(setsockopt(datagrams, IPPROTO_IP, IP_RECVERR, &(int){1}, sizeof(int)) == 0);
    REQUIRE(sendto(datagrams, "x", 1, 0, (struct sockaddr *)&name, length) == 1);
    struct pollfd polled = {.fd = datagrams};
    REQUIRE(poll(&polled, 1, PATIENCE_MS) == 1 && polled.revents & POLLERR);
}

static void check(void) {
    char control[512], text[16];
    struct iovec vector = {.iov_base = text, .iov_len = sizeof text};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    REQUIRE(recvmsg(datagrams, &message, MSG_ERRQUEUE) == 1 && text[0] == 'x');
}
