/* A descendant whose main thread has ended while another thread runs: it cannot be waited for, and holds the only write
 * end of a pipe. /proc shows it like a zombie. */
#include "resource.h"

#include <sys/prctl.h>

static pid_t descendant;
static int ends[2];

static void *hold_pipe(void *unused) {
    pause();
    return unused;
}

static char state_of(pid_t pid) {
    char path[64], state[16] = "";
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    read_line(path, "State:\t", state, sizeof state);
    return state[0];
}

static void set_up(void) {
    REQUIRE(pipe2(ends, O_NONBLOCK) == 0 && (descendant = fork()) >= 0);
    if (descendant == 0) {
        pthread_t thread;
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || pthread_create(&thread, NULL, hold_pipe, NULL) != 0) _exit(1);
        pthread_exit(NULL);
    }
    close(ends[1]);
    REQUIRE(COMES_TRUE(state_of(descendant) == 'Z'));
}

static void check(void) {
    char byte;
    int status;
    REQUIRE(read(ends[0], &byte, 1) == -1 && errno == EAGAIN && waitpid(descendant, &status, WNOHANG) == 0);
    REQUIRE(kill(descendant, SIGKILL) == 0 && waitpid(descendant, &status, 0) == descendant && WIFSIGNALED(status));
}
