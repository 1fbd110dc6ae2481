/* A parent with or without a server. Its children act as their payloads say.
 * `N serve` answers `child N` until a request for /quit; `N host PORT` waits for another child, and `N meet PORT`
 * connects to it.
 * `N look` prints the child's interfaces; `N name NAME` resolves a host name.
 * `N call IP PORT` asks a server once; `N calls IP PORT` asks until the answer is `done`; `N send IP PORT` sends
 * datagrams and prints the answers.
 * `N leave IP PORT` sends to a TCP and a UDP server without waiting; the servers report the data that they received.
 * `N speak` sends datagrams like `send`, by the socket that its parent connected.
 * The parent answers `parent`. Its hash is its port, or 0.
 * usage: networks nothing|listen|share (with SO_REUSEPORT)|connected IP PORT
 */
#include "../forked.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
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

/* Listens at a port. Returns the port. */
static unsigned listen_at(int fd, unsigned port) {
    struct sockaddr_in address = address_of(INADDR_ANY, port);
    socklen_t length = sizeof address;
    REQUIRE(bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 16) == 0);
    REQUIRE(getsockname(fd, (struct sockaddr *)&address, &length) == 0);
    return ntohs(address.sin_port);
}

/* Answers one request. Returns whether it was a request for /quit. Also returns 0 if there is no server, or if no
 * request arrives within the limit. */
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
    REQUIRE(fd >= 0, "no process listens at port %u", port);
    REQUIRE(dprintf(fd, "GET /quit HTTP/1.0\r\n\r\n") > 0 && read(fd, line, sizeof line - 1) > 0);
    REQUIRE(strstr(line, "the other"), "%s", line);
}

static void look(void) {
    struct if_nameindex *all = if_nameindex();
    REQUIRE(all);
    for (struct if_nameindex *one = all; one->if_index; one++) say("interface %s", one->if_name);
    if_freenameindex(all);
}

/* Calls a server once. Prints the answer or the error. Returns whether the answer was `done`. */
static int call(const struct sockaddr_in *other) {
    char line[LINE_BYTES] = {0};
    int fd = tcp_socket();
    if (connect(fd, (const struct sockaddr *)other, sizeof *other) != 0 || write(fd, "?", 1) != 1 ||
        read(fd, line, sizeof line - 1) < 0)
        snprintf(line, sizeof line, "nothing: %s", strerror(errno));
    close(fd);
    say("received %s", line);
    return strncmp(line, "done", 4) == 0;
}

static int datagram_socket(void) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct timeval limit = {.tv_sec = 2};
    REQUIRE(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    return fd;
}

/* Connects through the loopback interface, so that a missing route makes only later sends fail. */
static void connect_anyhow(int fd, const struct sockaddr_in *other) {
    REQUIRE(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3) == 0);
    REQUIRE(connect(fd, (const struct sockaddr *)other, sizeof *other) == 0);
    REQUIRE(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "", 1) == 0);
}

/* Sends three datagrams and prints the answers. If `other` is null, the socket is already connected, and its peer is
 * the receiver. */
static void send_to(int fd, const struct sockaddr_in *other) {
    char line[LINE_BYTES] = {0};
    struct sockaddr_in from = {0}, peer = {0};
    socklen_t length = sizeof from, peer_length = sizeof peer;
    if (!other) REQUIRE(getpeername(fd, (struct sockaddr *)&peer, &peer_length) == 0);
    for (int i = 0; i < 3; i++) {
        ssize_t sent = sendto(fd, "?", 1, 0, (const struct sockaddr *)other, other ? sizeof *other : 0);
        ssize_t got = sent < 0 ? sent : recvfrom(fd, line, sizeof line - 1, 0, (struct sockaddr *)&from, &length);
        if (got < 0) {
            say("received nothing: %s", strerror(errno));
            continue;
        }
        line[got] = 0;
        if (other) peer = *other;
        REQUIRE(from.sin_addr.s_addr == peer.sin_addr.s_addr && from.sin_port == peer.sin_port);
        say("received %s", line);
    }
    close(fd);
}

static void leave_word(const struct sockaddr_in *other) {
    int stream = tcp_socket(), datagrams = datagram_socket();
    REQUIRE(sendto(datagrams, "bye", 3, 0, (const struct sockaddr *)other, sizeof *other) == 3);
    REQUIRE(connect(stream, (const struct sockaddr *)other, sizeof *other) == 0 && write(stream, "bye", 3) == 3);
}

static void resolve(const char *name) {
    struct addrinfo hints = {.ai_flags = AI_ADDRCONFIG, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found;
    int failed = getaddrinfo(name, NULL, &hints, &found);
    REQUIRE(!failed, "%s: %s", name, gai_strerror(failed));
    say("received %s", inet_ntoa(((struct sockaddr_in *)found->ai_addr)->sin_addr));
    freeaddrinfo(found);
}

int main(int count, char **arguments) {
    const int is_connected = count == 4;
    REQUIRE(count == 2 || is_connected);
    signal(SIGPIPE, SIG_IGN);
    const int serves = !is_connected && strcmp(arguments[1], "nothing") != 0;
    int connected = is_connected ? datagram_socket() : -1;
    if (is_connected) {
        struct sockaddr_in other = address_of(ntohl(inet_addr(arguments[2])), (unsigned)atoi(arguments[3]));
        connect_anyhow(connected, &other);
    }
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
    } else if (strcmp(verb, "speak") == 0) {
        send_to(connected, NULL);
    } else if (strcmp(verb, "name") == 0) {
        resolve(strrchr(payload, ' ') + 1);
    } else if (strncmp(verb, "call", 4) == 0 || strcmp(verb, "send") == 0 || strcmp(verb, "leave") == 0) {
        char ip[INET_ADDRSTRLEN];
        struct timespec tick = {.tv_sec = 0, .tv_nsec = TICK_NS};
        REQUIRE(sscanf(payload, "%*u %*s %15s %u", ip, &other) == 2);
        struct sockaddr_in address = address_of(ntohl(inet_addr(ip)), other);
        if (verb[0] == 'l')
            leave_word(&address);
        else if (verb[0] == 's')
            send_to(datagram_socket(), &address);
        else
            while (!call(&address) && strcmp(verb, "calls") == 0) nanosleep(&tick, NULL);
    } else {
        look();
    }
    finish(payload, port);
}
