/* A pseudo-terminal of a child process, which has both ends. Input to the driving end arrives at the other end. */
#include "resource.h"

#include <sys/ioctl.h>
#include <sys/prctl.h>

static pid_t driver;
static int ask[2], tell[2];

static int works(int master, int slave) {
    char text[8] = {0};
    struct winsize size = {0};
    return ioctl(slave, TIOCGWINSZ, &size) == 0 && size.ws_row == 41 && write(master, "typed\n", 6) == 6 &&
           read(slave, text, sizeof text) == 6 && strcmp(text, "typed\n") == 0 && read(master, text, 8) == 7 &&
           strcmp(ttyname(slave), ptsname(master)) == 0;
}

static __attribute__((noreturn)) void drive(pid_t parent) {
    struct winsize size = {.ws_row = 41, .ws_col = 13};
    char byte = 0;
    int master = posix_openpt(O_RDWR | O_NOCTTY), slave;
    if (master < 0 || unlockpt(master) != 0 || (slave = open(ptsname(master), O_RDWR | O_NOCTTY)) < 0) _exit(1);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent || ioctl(slave, TIOCSWINSZ, &size) != 0) _exit(2);
    if (write(tell[1], "x", 1) != 1) _exit(3);
    while (read(ask[0], &byte, 1) == 1) {
        byte = (char)works(master, slave);
        if (write(tell[1], &byte, 1) != 1) break;
    }
    _exit(4);
}

static void set_up(void) {
    char byte;
    pid_t self = getpid();
    REQUIRE(pipe(ask) == 0 && pipe(tell) == 0 && (driver = fork()) >= 0);
    if (driver == 0) drive(self);
    REQUIRE(read(tell[0], &byte, 1) == 1);
}

static void check(void) {
    char byte = 0;
    REQUIRE(write(ask[1], "x", 1) == 1 && read(tell[0], &byte, 1) == 1 && byte == 1, "the child's terminal has changed");
}
