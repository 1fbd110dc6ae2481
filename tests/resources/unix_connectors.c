/* The users who have connected to the process's listening sockets, of connections that wait to be accepted, and the user who has
 * made a connection and has ended. The process has another user, and the clients have no access to the listeners any more. */
#include "resource.h"

#include <grp.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#define CLIENT_USER 4711
#define CLIENT_GROUP 4712
#define OWN_USER 4713

static const gid_t client_groups[] = {4714, 4715};
static const int types[] = {SOCK_STREAM, SOCK_SEQPACKET};
static int listeners[2], of_ended;
static char path[64]; /* of the first listener */
static pid_t client;

static void become_client(void) {
    REQUIRE(setgroups(2, client_groups) == 0 && setgid(CLIENT_GROUP) == 0 && setuid(CLIENT_USER) == 0);
}

/* Starts a client that connects to both listeners, and stays as long as the process. */
static pid_t start_client(const struct sockaddr_un *addresses) {
    int done[2], stays[2];
    char byte;
    REQUIRE(pipe(done) == 0 && pipe(stays) == 0);
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        close(stays[1]);
        become_client();
        for (int i = 0; i < 2; i++) {
            int fd = socket(AF_UNIX, types[i], 0);
            REQUIRE(connect(fd, (const struct sockaddr *)&addresses[i], sizeof addresses[i]) == 0);
        }
        REQUIRE(write(done[1], "c", 1) == 1);
        (void)!read(stays[0], &byte, 1);
        _exit(0);
    }
    REQUIRE(read(done[0], &byte, 1) == 1 && close(done[0]) == 0 && close(done[1]) == 0 && close(stays[0]) == 0);
    return pid;
}

/* Returns an end of a pair that a client has made, with a byte from it. The client has ended. */
static int end_of_client(void) {
    int pair[2], passed[2], end;
    char byte = 'p', control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, passed) == 0);
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        become_client();
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && write(pair[1], "r", 1) == 1);
        *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(header), pair, sizeof(int));
        REQUIRE(sendmsg(passed[1], &message, 0) == 1);
        _exit(0);
    }
    REQUIRE(recvmsg(passed[0], &message, 0) == 1 && message.msg_controllen > 0 && waitpid(pid, NULL, 0) == pid);
    memcpy(&end, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof end);
    REQUIRE(close(passed[0]) == 0 && close(passed[1]) == 0);
    return end;
}

static void remove_path(void) { unlink(path); }

static void set_up(void) {
    struct sockaddr_un addresses[2] = {{.sun_family = AF_UNIX}, {.sun_family = AF_UNIX}};
    for (int i = 0; i < 2; i++) {
        /* Outside of the program's directory, which the client cannot read. */
        snprintf(addresses[i].sun_path, sizeof addresses[i].sun_path, "/tmp/connectors-%d-%d", getpid(), i);
        if (i == 0) strcpy(path, addresses[0].sun_path), at_end(remove_path);
        listeners[i] = socket(AF_UNIX, types[i], 0);
        REQUIRE(bind(listeners[i], (struct sockaddr *)&addresses[i], sizeof addresses[i]) == 0);
        REQUIRE(chmod(addresses[i].sun_path, 0666) == 0 && listen(listeners[i], 4) == 0);
    }
    of_ended = end_of_client(), client = start_client(addresses);
    REQUIRE(chmod(addresses[0].sun_path, 0600) == 0 && unlink(addresses[1].sun_path) == 0);
    /* The real user stays root, which may read the program's directory. */
    REQUIRE(seteuid(OWN_USER) == 0);
}

static void require_client(int fd) {
    struct ucred peer;
    gid_t groups[8];
    socklen_t length = sizeof peer;
    REQUIRE(fd >= 0 && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0);
    REQUIRE(peer.uid == CLIENT_USER && peer.gid == CLIENT_GROUP, "%u:%u", peer.uid, peer.gid);
    length = sizeof groups;
    REQUIRE(getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &length) == 0 && length == sizeof client_groups);
    REQUIRE(memcmp(groups, client_groups, sizeof client_groups) == 0);
}

static void check(void) {
    char byte;
    require_client(of_ended);
    REQUIRE(read(of_ended, &byte, 1) == 1 && byte == 'r' && read(of_ended, &byte, 1) == 0);
    for (int i = 0; i < 2; i++) require_client(accept(listeners[i], NULL, NULL));
    REQUIRE(seteuid(0) == 0 && kill(client, SIGKILL) == 0 && waitpid(client, NULL, 0) == client);
}
