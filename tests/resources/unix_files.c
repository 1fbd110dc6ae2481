/* Files of Unix sockets: modes, owners and current paths. One socket was bound and renamed, and its old name was bound
 * again, as programs do to replace a socket. One was bound through a symbolic link to its directory. One has a second
 * name by a hard link. One has no name, and another file has its old name. One has the longest name, which ends without
 * a null byte. Accepted and waiting connections use them, and a datagram socket has one as its peer. */
#include "resource.h"

#include <dirent.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#define OWNER 1234
#define GROUP 4321

static int renamed, successor, linked, by_a_link, removed, longest, datagram, sender, client_of_renamed, client_of_removed, server_of_removed, client_of_longest;

static struct sockaddr_un address_of(const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path_of(name), sizeof address.sun_path - 1);
    return address;
}

static struct sockaddr_un longest_address(void) {
    struct sockaddr_un address = address_of("");
    size_t length = strlen(address.sun_path);
    memset(address.sun_path + length, 'p', sizeof address.sun_path - length);
    return address;
}

static int connect_longest(void) {
    struct sockaddr_un address = longest_address();
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    REQUIRE(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

static int bound(int type, const char *name, mode_t mode) {
    struct sockaddr_un address = address_of(name);
    int fd = socket(AF_UNIX, type, 0);
    REQUIRE(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0, "%s", name);
    REQUIRE(chmod(path_of(name), mode) == 0);
    REQUIRE(type == SOCK_DGRAM || listen(fd, 4) == 0);
    return fd;
}

static int connected(int type, const char *name) {
    struct sockaddr_un address = address_of(name);
    int fd = socket(AF_UNIX, type, 0);
    REQUIRE(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "%s", name);
    return fd;
}

static void set_up(void) {
    renamed = bound(SOCK_STREAM, "name", 0600);
    REQUIRE(chown(path_of("name"), OWNER, GROUP) == 0 && rename(path_of("name"), path_of("renamed")) == 0);
    client_of_renamed = connected(SOCK_STREAM, "renamed");
    successor = bound(SOCK_SEQPACKET, "name", 0777);
    linked = bound(SOCK_STREAM, "first-name", 0640);
    REQUIRE(link(path_of("first-name"), path_of("linked")) == 0 && unlink(path_of("first-name")) == 0);
    REQUIRE(symlink(".", path_of("here")) == 0);
    by_a_link = bound(SOCK_STREAM, "here/by-a-link", 0600);
    removed = bound(SOCK_STREAM, "removed", 0600);
    client_of_removed = connected(SOCK_STREAM, "removed"), server_of_removed = accept(removed, NULL, NULL);
    REQUIRE(server_of_removed >= 0 && unlink(path_of("removed")) == 0);
    int other = open(path_of("removed"), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    REQUIRE(other >= 0 && write(other, "other", 5) == 5 && close(other) == 0);
    struct sockaddr_un address = longest_address();
    longest = socket(AF_UNIX, SOCK_STREAM, 0);
    REQUIRE(bind(longest, (struct sockaddr *)&address, sizeof address) == 0 && listen(longest, 4) == 0);
    client_of_longest = connect_longest();
    datagram = bound(SOCK_DGRAM, "datagram-name", 0620);
    REQUIRE(rename(path_of("datagram-name"), path_of("datagram")) == 0);
    sender = connected(SOCK_DGRAM, "datagram");
}

static void check_name(int fd, const char *name) {
    struct sockaddr_un address;
    socklen_t length = sizeof address;
    REQUIRE(getsockname(fd, (struct sockaddr *)&address, &length) == 0);
    REQUIRE(strcmp(address.sun_path, path_of(name)) == 0, "%s", address.sun_path);
}

static void check_file(const char *name, mode_t mode, uid_t uid, gid_t gid) {
    struct stat found;
    REQUIRE(lstat(path_of(name), &found) == 0, "%s", name);
    REQUIRE(found.st_mode == (S_IFSOCK | mode), "%s: %o", name, found.st_mode);
    REQUIRE(found.st_uid == uid && found.st_gid == gid, "%s: %d:%d", name, (int)found.st_uid, (int)found.st_gid);
}

static void check_connection(int client, int server) {
    char byte;
    REQUIRE(server >= 0 && write(client, "c", 1) == 1 && read(server, &byte, 1) == 1 && byte == 'c');
}

static void check_listener(int listener, int type, const char *name) {
    int client = connected(type, name);
    check_connection(client, accept(listener, NULL, NULL));
}

/* Requires that the directory has no file of farfork. */
static void check_directory(void) {
    DIR *files = opendir(directory);
    REQUIRE(files);
    for (struct dirent *file; (file = readdir(files));) REQUIRE(strstr(file->d_name, "farfork") == NULL, "%s", file->d_name);
    closedir(files);
}

static void check_longest(void) {
    struct sockaddr_un wanted = longest_address();
    struct {
        struct sockaddr_un address;
        char end;
    } found;
    socklen_t length = sizeof found;
    REQUIRE(getsockname(longest, (struct sockaddr *)&found, &length) == 0 && length == sizeof wanted + 1, "%u bytes", length);
    REQUIRE(memcmp(&found.address, &wanted, sizeof wanted) == 0);
    check_connection(client_of_longest, accept(longest, NULL, NULL));
    int client = connect_longest();
    check_connection(client, accept(longest, NULL, NULL));
}

static void check(void) {
    char text[8];
    check_directory();
    check_longest();
    uid_t uid = geteuid();
    gid_t gid = getegid();
    check_name(renamed, "name"), check_file("renamed", 0600, OWNER, GROUP);
    check_connection(client_of_renamed, accept(renamed, NULL, NULL));
    check_listener(renamed, SOCK_STREAM, "renamed");
    check_name(successor, "name"), check_file("name", 0777, uid, gid);
    check_listener(successor, SOCK_SEQPACKET, "name");
    check_name(linked, "first-name"), check_file("linked", 0640, uid, gid);
    check_listener(linked, SOCK_STREAM, "linked");
    REQUIRE(access(path_of("first-name"), F_OK) == -1 && errno == ENOENT);
    check_name(by_a_link, "here/by-a-link"), check_file("by-a-link", 0600, uid, gid);
    check_listener(by_a_link, SOCK_STREAM, "by-a-link");
    check_name(removed, "removed"), check_name(server_of_removed, "removed");
    check_connection(client_of_removed, server_of_removed);
    int other = open(path_of("removed"), O_RDONLY | O_CLOEXEC);
    REQUIRE(other >= 0 && read(other, text, sizeof text) == 5 && memcmp(text, "other", 5) == 0);
    check_name(datagram, "datagram-name"), check_file("datagram", 0620, uid, gid);
    REQUIRE(access(path_of("datagram-name"), F_OK) == -1 && errno == ENOENT);
    REQUIRE(send(sender, "sent", 4, 0) == 4 && recv(datagram, text, sizeof text, MSG_DONTWAIT) == 4);
    int another = connected(SOCK_DGRAM, "datagram");
    REQUIRE(send(another, "again", 5, 0) == 5 && recv(datagram, text, sizeof text, MSG_DONTWAIT) == 5);
}
