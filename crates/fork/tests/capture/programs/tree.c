// A parent with a child. Both wait for signals.
#include "parent.h"

int main(void) {
    begin();
    pid_t child = CHECK(fork());
    if (!child) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL));
        for (;;) pause();
    }
    tell("child", child);
    ready();
    for (;;) pause();
}
