/* A Unix socket whose name has no path from the root of the tree: a child process with its own root (chroot(2)) has
 * bound it in a directory that exists only there. */
#include "resource.h"

#include <sys/socket.h>
#include <sys/un.h>

static pid_t jailed;

static void bind_to(const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, name, sizeof address.sun_path - 1);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0);
}

static void set_up(void) {
    int ends[2];
    char byte;
    pid_t self = getpid();
    REQUIRE(mkdir(path_of("jail"), 0700) == 0 && mkdir(path_of("jail/there-alone"), 0700) == 0);
    REQUIRE(pipe(ends) == 0 && (jailed = fork()) >= 0);
    if (jailed == 0) {
        REQUIRE(chroot(path_of("jail")) == 0);
        bind_to("/there-alone/socket");
        REQUIRE(write(ends[1], "x", 1) == 1);
        while (getppid() == self) usleep(10000);
        _exit(98);
    }
    REQUIRE(read(ends[0], &byte, 1) == 1);
}

static void check(void) {
    int status;
    REQUIRE(access(path_of("jail/there-alone/socket"), F_OK) == 0);
    REQUIRE(kill(jailed, SIGKILL) == 0 && waitpid(jailed, &status, 0) == jailed && WTERMSIG(status) == SIGKILL);
}
