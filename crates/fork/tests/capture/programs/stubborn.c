// A parent that cannot be stopped, or is about to end, depending on its argument.
#include "parent.h"

#include <time.h>

static void *after_main(void *unused) {
    sleep(1);
    ready();
    sleep(60);
    return unused;
}

static void run_for_ms(long ms) {
    struct timespec begun, now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &begun));
    do CHECK(clock_gettime(CLOCK_MONOTONIC, &now));
    while ((now.tv_sec - begun.tv_sec) * 1000 + (now.tv_nsec - begun.tv_nsec) / 1000000 < ms);
}

int main(int count, char **words) {
    (void)count;
    begin();
    const char *how = words[1];
    if (!strcmp(how, "vfork")) {
        ready();
        if (!vfork()) {
            sleep(60);
            _exit(0);
        }
    }
    if (!strcmp(how, "vfork_busily")) {
        ready();
        for (;;) {
            if (!CHECK(vfork())) {
                run_for_ms(300);
                _exit(0);
            }
            CHECK(wait(NULL));
        }
    }
    if (!strcmp(how, "no_leader")) {
        pthread_t thread;
        start(&thread, "after", after_main);
        pthread_exit(NULL);
    }
    if (!strcmp(how, "stopped")) {
        ready();
        raise(SIGSTOP);
        ready();
    }
    if (!strcmp(how, "ignores_trap")) {
        signal(SIGTRAP, SIG_IGN);
        ready();
        // Reports if a stop ever changed the disposition.
        for (;;) {
            usleep(1000);
            struct sigaction now;
            CHECK(sigaction(SIGTRAP, NULL, &now));
            if (now.sa_handler != SIG_IGN) die("SIGTRAP is no longer ignored");
        }
    }
    if (!strcmp(how, "forever")) ready();
    for (;;) pause();
}
