/* TCP connections whose other end is closed: by the process itself, before and after it was accepted, and by a process
 * outside of the tree, over the loopback and over another address of the machine. Data that had arrived, then end of file.
 * Other connections were reset, before and after they were accepted: data that had arrived, then the error. */
#include "resource.h"

#include <netinet/in.h>
#include <sys/socket.h>

static int listener, accepted, outside[2] = {-1, -1}, reset_listener, was_reset;
static struct sockaddr_in own, closed_client, theirs;

static int listening(in_addr_t at, struct sockaddr_in *address) {
    socklen_t length = sizeof *address;
    int socket_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {at}};
    REQUIRE(bind(socket_fd, (struct sockaddr *)address, length) == 0 && listen(socket_fd, 4) == 0);
    REQUIRE(getsockname(socket_fd, (struct sockaddr *)address, &length) == 0);
    return socket_fd;
}

/* An address of the machine that is not of the loopback; 0 if it has none. */
static in_addr_t interface_address(void) {
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr = {htonl(0xc0000201)}}, found;
    socklen_t length = sizeof found;
    int probe = socket(AF_INET, SOCK_DGRAM, 0);
    int is_routed = connect(probe, (struct sockaddr *)&any, sizeof any) == 0 && getsockname(probe, (struct sockaddr *)&found, &length) == 0;
    close(probe);
    return is_routed ? found.sin_addr.s_addr : 0;
}

/* Waits until the other end has closed the connection. */
static void wait_for_end(int fd) {
    struct pollfd polled = {.fd = fd, .events = POLLRDHUP};
    REQUIRE(poll(&polled, 1, PATIENCE_MS) == 1);
}

/* Accepts a connection from a process outside of the tree, which sends data, and ends. */
static int connected_outside(in_addr_t at) {
    struct sockaddr_in address;
    int socket_fd = listening(at, &address);
    pid_t between = fork();
    REQUIRE(between >= 0);
    if (between == 0) {
        if (fork() != 0) _exit(0);
        int client = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(client, (struct sockaddr *)&address, sizeof address) == 0) send(client, "outside", 7, 0);
        _exit(0);
    }
    REQUIRE(waitpid(between, NULL, 0) == between);
    int connection = accept(socket_fd, NULL, NULL);
    REQUIRE(connection >= 0 && close(socket_fd) == 0);
    wait_for_end(connection);
    return connection;
}

/* Connects to a listening socket. */
static int connected(const struct sockaddr_in *address) {
    int client = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(connect(client, (const struct sockaddr *)address, sizeof *address) == 0);
    return client;
}

static void reset(int client) {
    struct linger at_once = {.l_onoff = 1};
    REQUIRE(setsockopt(client, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0 && close(client) == 0);
}

static void set_up_resets(void) {
    struct sockaddr_in address;
    reset_listener = listening(htonl(INADDR_ANY), &address);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int client = connected(&address);
    REQUIRE((was_reset = accept(reset_listener, NULL, NULL)) >= 0 && send(client, "before", 6, 0) == 6);
    reset(client), reset(connected(&address));
    wait_for_end(was_reset);
}

static void set_up(void) {
    socklen_t length = sizeof closed_client;
    in_addr_t interface = interface_address();
    outside[0] = connected_outside(htonl(INADDR_LOOPBACK));
    if (interface != 0) outside[1] = connected_outside(interface);
    listener = listening(htonl(INADDR_LOOPBACK), &own);
    set_up_resets();
    int client = connected(&own);
    REQUIRE((accepted = accept(listener, NULL, NULL)) >= 0);
    REQUIRE(send(client, "inside", 6, 0) == 6 && close(client) == 0);
    wait_for_end(accepted);
    REQUIRE(getpeername(accepted, (struct sockaddr *)&theirs, &length) == 0);
    client = connected(&own), length = sizeof closed_client;
    REQUIRE(getsockname(client, (struct sockaddr *)&closed_client, &length) == 0 && close(client) == 0);
}

static void require_end(int fd, const char *text) {
    char got[16] = {0};
    struct pollfd polled = {.fd = fd, .events = POLLIN | POLLRDHUP};
    REQUIRE(poll(&polled, 1, PATIENCE_MS) == 1 && polled.revents == (POLLIN | POLLRDHUP), "%s is ready for %x", text, polled.revents);
    REQUIRE(recv(fd, got, sizeof got, 0) == (ssize_t)strlen(text) && strcmp(got, text) == 0, "%s, not %s", got, text);
    REQUIRE(recv(fd, got, sizeof got, 0) == 0 && recv(fd, got, sizeof got, 0) == 0, "%s does not end", text);
    REQUIRE(send(fd, "x", 1, MSG_NOSIGNAL) == 1, "%s", text);
    polled.events = 0;
    REQUIRE(poll(&polled, 1, PATIENCE_MS) == 1, "%s is not refused", text);
    REQUIRE(send(fd, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE, "%s", text);
}

static void require_reset(int fd, const char *text) {
    char got[16] = {0};
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    size_t bytes = strlen(text);
    REQUIRE(poll(&polled, 1, PATIENCE_MS) == 1 && polled.revents & POLLERR, "%s is ready for %x", text, polled.revents);
    REQUIRE(bytes == 0 || (recv(fd, got, sizeof got, 0) == (ssize_t)bytes && strcmp(got, text) == 0), "%s, not %s", got, text);
    REQUIRE(recv(fd, got, sizeof got, 0) == -1 && errno == ECONNRESET && recv(fd, got, sizeof got, 0) == 0, "%s", text);
}

static void check(void) {
    require_reset(was_reset, "before"), require_reset(accept4(reset_listener, NULL, NULL, SOCK_NONBLOCK), "");
    struct sockaddr_in now;
    socklen_t length = sizeof now;
    REQUIRE(getpeername(accepted, (struct sockaddr *)&now, &length) == 0 && now.sin_port == theirs.sin_port, "port %d", ntohs(now.sin_port));
    require_end(accepted, "inside"), require_end(outside[0], "outside");
    if (outside[1] >= 0) require_end(outside[1], "outside");
    int waited = accept4(listener, (struct sockaddr *)&now, &length, SOCK_NONBLOCK);
    REQUIRE(waited >= 0 && now.sin_port == closed_client.sin_port, "port %d", ntohs(now.sin_port));
    require_end(waited, "");
    REQUIRE(fcntl(listener, F_SETFL, O_NONBLOCK) == 0 && accept(listener, NULL, NULL) == -1 && errno == EAGAIN);
}
