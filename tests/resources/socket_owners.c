/* Sockets and pipes that were made before the process changed its user: their owners, and the credentials that the kernel has
 * recorded of the creators of connections. */
#include "resource.h"

#include <grp.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#define USER 4711
#define GROUP 4712
#define OTHER_GROUP 4713

struct made {
    int pair[2], pipe[2], listener, client, accepted, datagram;
};

static struct made before, after;

static struct made make(const char *name) {
    struct made made;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "owners-%s-%d", name, getpid());
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(address.sun_path + 1));
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, made.pair) == 0 && pipe(made.pipe) == 0);
    made.listener = socket(AF_UNIX, SOCK_STREAM, 0), made.client = socket(AF_UNIX, SOCK_STREAM, 0);
    REQUIRE(bind(made.listener, (struct sockaddr *)&address, length) == 0 && listen(made.listener, 3) == 0);
    REQUIRE(connect(made.client, (struct sockaddr *)&address, length) == 0);
    made.accepted = accept(made.listener, NULL, NULL), made.datagram = socket(AF_INET, SOCK_DGRAM, 0);
    REQUIRE(made.accepted >= 0 && made.datagram >= 0);
    return made;
}

static void set_up(void) {
    gid_t group = OTHER_GROUP;
    before = make("before");
    REQUIRE(fchown(before.datagram, 99, 98) == 0 && fchmod(before.pipe[0], 0640) == 0);
    /* The real user stays root, which may read the program's directory. */
    REQUIRE(setgroups(1, &group) == 0 && setegid(GROUP) == 0 && seteuid(USER) == 0);
    after = make("after");
}

static void require_owner(int fd, uid_t user, gid_t group, mode_t mode) {
    struct stat status;
    REQUIRE(fstat(fd, &status) == 0 && status.st_uid == user && status.st_gid == group && (status.st_mode & 07777) == mode,
            "fd %d: %u:%u %o", fd, status.st_uid, status.st_gid, status.st_mode);
}

static void require_creator(int fd, uid_t user, gid_t group) {
    struct ucred peer;
    gid_t groups[64];
    socklen_t length = sizeof peer;
    REQUIRE(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0);
    REQUIRE(peer.pid == getpid() && peer.uid == user && peer.gid == group, "fd %d: %u:%u", fd, peer.uid, peer.gid);
    length = sizeof groups;
    REQUIRE(getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &length) == 0);
    REQUIRE(user == 0 || (length == sizeof *groups && groups[0] == OTHER_GROUP), "fd %d: %u bytes of groups", fd, length);
}

static void require(const struct made *made, uid_t user, gid_t group) {
    const int streams[] = {made->pair[0], made->pair[1], made->listener, made->client, made->accepted};
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
        require_owner(streams[i], user, group, 0777);
        require_creator(streams[i], user, group);
    }
}

static void check(void) {
    require(&before, 0, 0), require(&after, USER, GROUP);
    require_owner(before.datagram, 99, 98, 0777), require_owner(after.datagram, USER, GROUP, 0777);
    require_owner(before.pipe[0], 0, 0, 0640), require_owner(after.pipe[1], USER, GROUP, 0600);
    /* A pipe can be opened again only by its owner. */
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", after.pipe[1]);
    REQUIRE(open(path, O_WRONLY) >= 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", before.pipe[1]);
    REQUIRE(open(path, O_WRONLY) == -1 && errno == EACCES);
}
