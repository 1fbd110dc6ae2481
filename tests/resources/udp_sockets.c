/* UDP sockets: bound with options, connected, and connected with one or both directions shut down. They work again in
 * the child's network. */
#include "resource.h"

#include <netinet/in.h>
#include <sys/socket.h>

static int server, client, six, shut[3];
static struct sockaddr_in address;
static struct sockaddr_in6 address6;

/* IP_TOS makes the kernel change the priority. SO_PRIORITY then sets it back. */
static const struct {
    int level, name, value;
} options[] = {{IPPROTO_IP, IP_TOS, 8}, {SOL_SOCKET, SO_PRIORITY, 0}, {IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE}, {IPPROTO_IP, IP_RECVTOS, 1}, {SOL_SOCKET, SO_TIMESTAMPNS, 1}, {SOL_SOCKET, SO_RXQ_OVFL, 1}, {SOL_SOCKET, SO_ZEROCOPY, 1}, {SOL_SOCKET, SO_PEEK_OFF, 3}};

#define OPTIONS (sizeof options / sizeof options[0])

static void set_up(void) {
    int on = 1;
    socklen_t length = sizeof address, length6 = sizeof address6;
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    address6 = (struct sockaddr_in6){.sin6_family = AF_INET6};
    server = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0), client = socket(AF_INET, SOCK_DGRAM, 0), six = socket(AF_INET6, SOCK_DGRAM, 0);
    REQUIRE(setsockopt(server, SOL_SOCKET, SO_BROADCAST, &on, sizeof on) == 0 && setsockopt(six, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) == 0);
    REQUIRE(bind(server, (struct sockaddr *)&address, sizeof address) == 0 && getsockname(server, (struct sockaddr *)&address, &length) == 0);
    REQUIRE(bind(six, (struct sockaddr *)&address6, sizeof address6) == 0 && getsockname(six, (struct sockaddr *)&address6, &length6) == 0);
    for (size_t i = 0; i < OPTIONS; i++)
        REQUIRE(setsockopt(client, options[i].level, options[i].name, &options[i].value, sizeof(int)) == 0, "option %zu", i);
    REQUIRE(connect(client, (struct sockaddr *)&address, sizeof address) == 0);
    for (int how = SHUT_RD; how <= SHUT_RDWR; how++) {
        shut[how] = socket(AF_INET, SOCK_DGRAM, 0);
        REQUIRE(connect(shut[how], (struct sockaddr *)&address, sizeof address) == 0 && shutdown(shut[how], how) == 0);
    }
}

static void check(void) {
    struct sockaddr_in now;
    struct sockaddr_in6 now6;
    socklen_t length = sizeof now, length6 = sizeof now6, option = sizeof(int);
    char text[8];
    int on = 0;
    REQUIRE(getsockname(server, (struct sockaddr *)&now, &length) == 0 && now.sin_port == address.sin_port && now.sin_addr.s_addr == address.sin_addr.s_addr);
    REQUIRE(getsockname(six, (struct sockaddr *)&now6, &length6) == 0 && now6.sin6_port == address6.sin6_port);
    REQUIRE(getsockopt(server, SOL_SOCKET, SO_BROADCAST, &on, &option) == 0 && on == 1 && fcntl(server, F_GETFL) & O_NONBLOCK);
    REQUIRE(getsockopt(six, IPPROTO_IPV6, IPV6_V6ONLY, &on, &option) == 0 && on == 1);
    for (size_t i = 0; i < OPTIONS; i++) {
        REQUIRE(getsockopt(client, options[i].level, options[i].name, &on, &option) == 0 && on == options[i].value, "option %zu is %d", i, on);
    }
    for (int how = SHUT_RD; how <= SHUT_RDWR; how++) {
        ssize_t sent = send(shut[how], "x", 1, MSG_NOSIGNAL);
        REQUIRE(how == SHUT_RD ? sent == 1 : sent == -1 && errno == EPIPE, "shutdown %d: sent %zd", how, sent);
        struct pollfd polled = {.fd = shut[how], .events = POLLIN | POLLRDHUP};
        poll(&polled, 1, 0);
        REQUIRE(polled.revents == (how == SHUT_WR ? 0 : how == SHUT_RD ? POLLIN | POLLRDHUP : POLLIN | POLLRDHUP | POLLHUP), "shutdown %d: %x", how, polled.revents);
        ssize_t got = recv(shut[how], text, sizeof text, how == SHUT_WR ? MSG_DONTWAIT : 0);
        REQUIRE(how == SHUT_WR ? got == -1 && errno == EAGAIN : got == 0, "shutdown %d: got %zd", how, got);
    }
    REQUIRE(poll(&(struct pollfd){.fd = server, .events = POLLIN}, 1, PATIENCE_MS) == 1 && recv(server, text, sizeof text, 0) == 1);
    REQUIRE(send(client, "hello", 5, 0) == 5, "the connected socket cannot send");
    REQUIRE(poll(&(struct pollfd){.fd = server, .events = POLLIN}, 1, PATIENCE_MS) == 1 && recv(server, text, sizeof text, 0) == 5);
}
