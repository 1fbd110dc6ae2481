/* Listening Unix sockets, one at a path and one with an abstract name, and a bound datagram socket. They serve clients
 * in the child's file system and network. */
#include "resource.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

static int by_path, by_name, datagram;

static socklen_t address_of(struct sockaddr_un *address, const char *name) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int is_abstract = name[0] == '@';
    strncpy(address->sun_path + is_abstract, is_abstract ? name + 1 : path_of(name), sizeof address->sun_path - 2);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + is_abstract + strlen(address->sun_path + is_abstract) + !is_abstract);
}

static int bound(int type, const char *name) {
    struct sockaddr_un address;
    socklen_t length = address_of(&address, name);
    int fd = socket(AF_UNIX, type, 0);
    REQUIRE(fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0, "%s", name);
    return fd;
}

static void set_up(void) {
    char name[64];
    snprintf(name, sizeof name, "@farfork-test-%d", getpid());
    by_path = bound(SOCK_STREAM, "socket"), by_name = bound(SOCK_SEQPACKET, name), datagram = bound(SOCK_DGRAM, "datagram");
    REQUIRE(listen(by_path, 5) == 0 && listen(by_name, 7) == 0);
}

static void check_listener(int listener, int type) {
    struct sockaddr_un address;
    socklen_t length = sizeof address;
    char byte;
    int client = socket(AF_UNIX, type, 0), listens = 0;
    REQUIRE(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    REQUIRE(connect(client, (struct sockaddr *)&address, length) == 0, "no socket listens");
    length = sizeof listens;
    REQUIRE(getsockopt(listener, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens);
    int server = accept(listener, NULL, NULL);
    REQUIRE(server >= 0 && write(client, "c", 1) == 1 && read(server, &byte, 1) == 1 && byte == 'c');
}

static void check(void) {
    struct sockaddr_un address;
    socklen_t length = address_of(&address, "datagram");
    char text[8];
    check_listener(by_path, SOCK_STREAM);
    check_listener(by_name, SOCK_SEQPACKET);
    int sender = socket(AF_UNIX, SOCK_DGRAM, 0);
    REQUIRE(sendto(sender, "hello", 5, 0, (struct sockaddr *)&address, length) == 5);
    REQUIRE(recv(datagram, text, sizeof text, MSG_DONTWAIT) == 5);
}
