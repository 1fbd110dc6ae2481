/* A parent with a server, or without, whose children go on to serve, meet each other or look around, as their payloads say:
 * `N serve` answers `child N` until it is asked for /quit; `N host PORT` waits for another child, `N meet PORT` looks for it;
 * `N look` tells its interfaces. The parent answers `parent`. Its hash is its port, or 0.
 * usage: networks nothing|listen|share (with SO_REUSEPORT)
 */
#include "../forked.h"

#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#define MEET_TRIES 2000
#define LINE_BYTES 512

static int tcp_socket(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(fd >= 0);
    return fd;
}

static struct sockaddr_in address_of(uint32_t ip, unsigned port) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(ip)}};
}

/* Gives the port. */
static unsigned listen_at(int fd, unsigned port) {
    struct sockaddr_in address = address_of(INADDR_ANY, port);
    socklen_t length = sizeof address;
    REQUIRE(bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 16) == 0);
    REQUIRE(getsockname(fd, (struct sockaddr *)&address, &length) == 0);
    return ntohs(address.sin_port);
}

/* Answers one request, if there is one within so long; without a server, there is none. Gives whether it was to end. */
static int answer_one(int server, int limit_ms, const char *who) {
    struct pollfd ready = {.fd = server, .events = POLLIN};
    if (poll(&ready, 1, limit_ms) != 1) return 0;
    int fd = accept4(server, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return 0;
    char line[LINE_BYTES] = {0};
    ssize_t length = read(fd, line, sizeof line - 1);
    dprintf(fd, "HTTP/1.0 200 OK\r\n\r\n%s\n", who);
    close(fd);
    return length > 0 && strncmp(line, "GET /quit ", 10) == 0;
}

static void meet(unsigned port) {
    struct sockaddr_in address = address_of(INADDR_LOOPBACK, port);
    struct timespec tick = {.tv_sec = 0, .tv_nsec = TICK_NS};
    int fd = -1;
    for (int i = 0; i < MEET_TRIES && fd < 0; i++) {
        fd = tcp_socket();
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) break;
        close(fd);
        fd = -1;
        nanosleep(&tick, NULL);
    }
    char line[LINE_BYTES] = {0};
    REQUIRE(fd >= 0, "nobody listens at port %u", port);
    REQUIRE(dprintf(fd, "GET /quit HTTP/1.0\r\n\r\n") > 0 && read(fd, line, sizeof line - 1) > 0);
    REQUIRE(strstr(line, "the other"), "%s", line);
}

static void look(void) {
    struct if_nameindex *all = if_nameindex();
    REQUIRE(all);
    for (struct if_nameindex *one = all; one->if_index; one++) say("interface %s", one->if_name);
    if_freenameindex(all);
}

int main(int count, char **arguments) {
    REQUIRE(count == 2);
    signal(SIGPIPE, SIG_IGN);
    const int serves = strcmp(arguments[1], "nothing") != 0;
    int server = serves ? tcp_socket() : -1, on = 1;
    unsigned port = 0;
    if (strcmp(arguments[1], "share") == 0)
        REQUIRE(setsockopt(server, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0);
    if (serves) port = listen_at(server, 0);

    char payload[PAYLOAD_BYTES_MAX], who[PAYLOAD_BYTES_MAX + 8], verb[16] = {0};
    ready(port);
    while (!find_payload(payload)) {
        say("tick %llu", (unsigned long long)monotonic_us());
        answer_one(server, 2, "parent");
    }

    unsigned number, other = 0;
    REQUIRE(sscanf(payload, "%u %15s %u", &number, verb, &other) >= 2);
    snprintf(who, sizeof who, "child %u", number);
    if (strcmp(verb, "serve") == 0) {
        while (!answer_one(server, 1000, who)) continue;
    } else if (strcmp(verb, "host") == 0) {
        int own = tcp_socket();
        listen_at(own, other);
        while (!answer_one(own, 1000, "the other")) continue;
    } else if (strcmp(verb, "meet") == 0) {
        meet(other);
    } else {
        look();
    }
    finish(payload, port);
}
