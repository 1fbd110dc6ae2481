/* Unix sockets with names: a datagram socket that is connected to itself, two that are connected to each other, and one
 * that sends to a later socket. The kernel has also named ends of pairs and connections, because of SO_PASSCRED.
 * Receivers get the names of senders. */
#include "resource.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { SELF, ONE, OTHER, EARLY, LATE, SOCKETS };

static int sockets[SOCKETS], sequenced[2], datagrams[2], listener, client, accepted;
static struct sockaddr_un names[SOCKETS], of_sequenced, of_datagrams[2], of_client;
static socklen_t sequenced_bytes, datagrams_bytes[2], client_bytes;

static socklen_t name(struct sockaddr_un *address, const char *what) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)snprintf(address->sun_path + 1, 64, "%s-%d", what, getpid()));
}

static socklen_t bytes_of(const struct sockaddr_un *address) {
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(address->sun_path + 1));
}

static void connect_to(int from, int to) {
    REQUIRE(connect(sockets[from], (struct sockaddr *)&names[to], bytes_of(&names[to])) == 0);
}

static void tell_who(int fd) {
    int on = 1;
    REQUIRE(setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0);
}

static void named(int fd, struct sockaddr_un *address, socklen_t *bytes) {
    *bytes = sizeof *address;
    REQUIRE(getsockname(fd, (struct sockaddr *)address, bytes) == 0 && *bytes == 8, "the kernel has not named the socket");
}

static void exchange(int from, int to, const struct sockaddr_un *sender, socklen_t sender_bytes) {
    struct sockaddr_un told;
    socklen_t length = sizeof told;
    char byte;
    REQUIRE(send(from, "x", 1, MSG_DONTWAIT) == 1, "fd %d", from);
    REQUIRE(recvfrom(to, &byte, 1, MSG_DONTWAIT, (struct sockaddr *)&told, &length) == 1, "fd %d", to);
    REQUIRE(length == sender_bytes && memcmp(&told, sender, length) == 0, "fd %d has another name", from);
}

static void set_up(void) {
    static const char *const what[SOCKETS] = {"self", "one", "other", "early", "late"};
    struct sockaddr_un address;
    for (int i = 0; i < SOCKETS; i++) {
        sockets[i] = socket(AF_UNIX, SOCK_DGRAM, 0);
        socklen_t length = name(&names[i], what[i]);
        REQUIRE(bind(sockets[i], (struct sockaddr *)&names[i], length) == 0);
    }
    connect_to(SELF, SELF), connect_to(ONE, OTHER), connect_to(OTHER, ONE), connect_to(EARLY, LATE);
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sequenced) == 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, datagrams) == 0);
    tell_who(sequenced[0]), tell_who(datagrams[0]), tell_who(datagrams[1]);
    char byte;
    REQUIRE(send(sequenced[0], "x", 1, 0) == 1 && recv(sequenced[1], &byte, 1, 0) == 1);
    for (int i = 0; i < 2; i++) REQUIRE(send(datagrams[i], "x", 1, 0) == 1 && recv(datagrams[!i], &byte, 1, 0) == 1);
    listener = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
    socklen_t length = name(&address, "listener");
    REQUIRE(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 2) == 0);
    tell_who(client);
    REQUIRE(connect(client, (struct sockaddr *)&address, length) == 0 && (accepted = accept(listener, NULL, NULL)) >= 0);
    named(sequenced[0], &of_sequenced, &sequenced_bytes), named(client, &of_client, &client_bytes);
    for (int i = 0; i < 2; i++) named(datagrams[i], &of_datagrams[i], &datagrams_bytes[i]);
    /* This message is in flight at the fork. */
    REQUIRE(send(sequenced[0], "waits", 5, 0) == 5);
}

static void check(void) {
    struct sockaddr_un told;
    socklen_t length = sizeof told;
    char text[8] = {0};
    REQUIRE(recvfrom(sequenced[1], text, sizeof text, MSG_DONTWAIT, (struct sockaddr *)&told, &length) == 5 && strcmp(text, "waits") == 0);
    exchange(sockets[SELF], sockets[SELF], &names[SELF], bytes_of(&names[SELF]));
    exchange(sockets[ONE], sockets[OTHER], &names[ONE], bytes_of(&names[ONE]));
    exchange(sockets[OTHER], sockets[ONE], &names[OTHER], bytes_of(&names[OTHER]));
    exchange(sockets[EARLY], sockets[LATE], &names[EARLY], bytes_of(&names[EARLY]));
    for (int i = 0; i < 2; i++) exchange(datagrams[i], datagrams[!i], &of_datagrams[i], datagrams_bytes[i]);
    length = sizeof told;
    REQUIRE(getsockname(sequenced[0], (struct sockaddr *)&told, &length) == 0 && length == sequenced_bytes && memcmp(&told, &of_sequenced, length) == 0);
    length = sizeof told;
    REQUIRE(getpeername(accepted, (struct sockaddr *)&told, &length) == 0 && length == client_bytes && memcmp(&told, &of_client, length) == 0, "the client has another name");
    REQUIRE(send(client, "x", 1, 0) == 1 && recv(accepted, text, 1, 0) == 1);
    /* Named sockets receive data. */
    int other = socket(AF_UNIX, SOCK_DGRAM, 0);
    REQUIRE(sendto(other, "y", 1, 0, (struct sockaddr *)&names[LATE], bytes_of(&names[LATE])) == 1 && recv(sockets[LATE], text, 1, MSG_DONTWAIT) == 1);
}
