/* TCP connections within the process: one with more data than the receiver has room for, and one with unread urgent data,
 * which its receiver gets inline (SO_OOBINLINE). Unsent data cannot be read, and a peek ends at urgent data: not carried. */
#include "resource.h"

#include <netinet/in.h>
#include <sys/socket.h>

static int client, server, urgent;
static size_t sent;

/* Connects two sockets. */
static void connect_pair(int *from, int *to) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    *from = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0);
    REQUIRE(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    REQUIRE(connect(*from, (struct sockaddr *)&address, sizeof address) == 0);
    *to = accept(listener, NULL, NULL);
    REQUIRE(*to >= 0 && close(listener) == 0);
}

static void set_up(void) {
    int sender, on = 1;
    connect_pair(&client, &server), connect_pair(&sender, &urgent);
    REQUIRE(client == 4 && setsockopt(urgent, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on) == 0);
    REQUIRE(send(sender, "12", 2, 0) == 2 && send(sender, "!", 1, MSG_OOB) == 1);
    char piece[1 << 16] = {0};
    for (ssize_t bytes; (bytes = send(client, piece, sizeof piece, MSG_DONTWAIT)) > 0;) sent += (size_t)bytes;
}

static void check(void) {
    char piece[1 << 16];
    shutdown(client, SHUT_WR);
    for (ssize_t bytes; (bytes = read(server, piece, sizeof piece)) > 0;) sent -= (size_t)bytes;
    REQUIRE(sent == 0);
    REQUIRE(read(urgent, piece, sizeof piece) == 2 && read(urgent, piece, sizeof piece) == 1 && piece[0] == '!');
}
