/* An unaccepted connection with data, which cannot be read before accept(2): not carried. */
#include "resource.h"

#include <sys/socket.h>
#include <sys/un.h>

static int listener, client;

static void set_up(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path_of("listener"), sizeof address.sun_path - 1);
    listener = socket(AF_UNIX, SOCK_SEQPACKET, 0), client = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 4) == 0);
    REQUIRE(connect(client, (struct sockaddr *)&address, sizeof address) == 0 && write(client, "early", 5) == 5);
}

static void check(void) {
    char text[16] = {0};
    int server = accept(listener, NULL, NULL);
    REQUIRE(server >= 0 && read(server, text, sizeof text) == 5 && strcmp(text, "early") == 0);
}
