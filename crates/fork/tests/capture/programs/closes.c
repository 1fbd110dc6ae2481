// A parent that closes one end of a pipe when it reads a byte, and checks that the other end sees it.
#include "parent.h"

int main(void) {
    int ends[2];
    char byte;
    begin();
    CHECK(pipe2(ends, O_NONBLOCK));
    ready();
    CHECK(read(0, &byte, 1));
    CHECK(close(ends[1]));
    tell("ended", read(ends[0], &byte, 1) == 0);
    for (;;) pause();
}
