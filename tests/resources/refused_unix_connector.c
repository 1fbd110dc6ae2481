/* A connection that waits to be accepted, and whose socket the process has made as another user. */
#include "resource.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

static int listener, client;

static void set_up(void) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "connector-%d", getpid());
    listener = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&name, sizeof name) == 0 && listen(listener, 4) == 0);
    REQUIRE(connect(client, (struct sockaddr *)&name, sizeof name) == 0);
    /* The real user stays root, which may read the program's directory. */
    REQUIRE(seteuid(4711) == 0);
}

static void check(void) {
    struct ucred peer;
    socklen_t length = sizeof peer;
    int accepted = accept(listener, NULL, NULL);
    REQUIRE(getsockopt(accepted, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == 0);
}
