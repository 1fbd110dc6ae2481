/* Pseudo-terminals with both ends in the program: numbers with a gap, settings, window sizes, packet mode, locks,
 * closed ends, and one that is the controlling terminal. Later input arrives. */
#include "resource.h"

#include <sys/ioctl.h>
#include <termios.h>

static int master, slave, again, packets, packets_slave, locked, hung_up, master_number;

static int new_master(void) {
    int fd = posix_openpt(O_RDWR | O_NOCTTY);
    REQUIRE(fd >= 0);
    return fd;
}

static int other_end(int of) {
    REQUIRE(grantpt(of) == 0 && unlockpt(of) == 0);
    int fd = open(ptsname(of), O_RDWR | O_NOCTTY);
    REQUIRE(fd >= 0, "%s", ptsname(of));
    return fd;
}

static int number_of(int fd) {
    int number;
    REQUIRE(ioctl(fd, TIOCGPTN, &number) == 0);
    return number;
}

static void set_up(void) {
    struct termios settings;
    struct winsize size = {.ws_row = 33, .ws_col = 77, .ws_xpixel = 500};
    int on = 1, gap = new_master();
    master = new_master(), slave = other_end(master);
    again = open(ptsname(master), O_WRONLY | O_NOCTTY | O_NONBLOCK);
    packets = new_master(), packets_slave = other_end(packets);
    locked = new_master(), hung_up = new_master();
    master_number = number_of(master);
    REQUIRE(close(gap) == 0 && close(other_end(hung_up)) == 0);
    REQUIRE(tcgetattr(slave, &settings) == 0);
    cfmakeraw(&settings);
    settings.c_cc[VINTR] = 7;
    REQUIRE(cfsetspeed(&settings, B9600) == 0);
    REQUIRE(tcsetattr(slave, TCSANOW, &settings) == 0 && ioctl(slave, TIOCSWINSZ, &size) == 0);
    REQUIRE(ioctl(packets, TIOCPKT, &on) == 0 && fchmod(packets_slave, 0600) == 0);
    signal(SIGHUP, SIG_IGN);
    REQUIRE((setsid() > 0 || getsid(0) == getpid()) && ioctl(slave, TIOCSCTTY, 0) == 0 && tcgetpgrp(slave) == getpgrp());
}

static void check_settings(void) {
    struct termios settings;
    struct winsize size = {0};
    REQUIRE(tcgetattr(slave, &settings) == 0 && !(settings.c_lflag & ICANON) && settings.c_cc[VINTR] == 7);
    REQUIRE(cfgetospeed(&settings) == B9600);
    REQUIRE(ioctl(master, TIOCGWINSZ, &size) == 0 && size.ws_row == 33 && size.ws_col == 77 && size.ws_xpixel == 500);
    REQUIRE(tcgetattr(packets_slave, &settings) == 0 && settings.c_lflag & ICANON);
}

static void check_streams(void) {
    char text[16] = {0};
    REQUIRE(write(master, "typed", 5) == 5 && read(slave, text, sizeof text) == 5 && strcmp(text, "typed") == 0);
    REQUIRE(fcntl(again, F_GETFL) & O_NONBLOCK && write(again, "shown", 5) == 5);
    REQUIRE(read(master, text, sizeof text) == 5 && strcmp(text, "shown") == 0);
    REQUIRE(write(packets_slave, "one", 3) == 3 && read(packets, text, sizeof text) == 4);
    REQUIRE(text[0] == TIOCPKT_DATA && memcmp(text + 1, "one", 3) == 0);
}

static void check(void) {
    struct stat status;
    char path[32];
    int number = number_of(master), is_locked = 0;
    REQUIRE(strcmp(ttyname(slave), ptsname(master)) == 0 && number == master_number, "%s", ttyname(slave));
    check_settings();
    check_streams();
    REQUIRE(fstat(packets_slave, &status) == 0 && (status.st_mode & 0777) == 0600);
    REQUIRE(ioctl(locked, TIOCGPTLCK, &is_locked) == 0 && is_locked);
    REQUIRE(read(hung_up, path, sizeof path) == -1 && errno == EIO, "its other end is not closed");
    REQUIRE(tcgetsid(slave) == getsid(0) && tcgetpgrp(slave) == getpgrp(), "not the controlling terminal");
    int controlling = open("/dev/tty", O_RDWR);
    REQUIRE(controlling >= 0 && ioctl(controlling, TIOCGWINSZ, &(struct winsize){0}) == 0);
    snprintf(path, sizeof path, "/dev/pts/%d", number_of(locked));
    REQUIRE(open(path, O_RDWR | O_NOCTTY) == -1, "a locked terminal was opened");
}
