// Shared by programs that run as a parent and, forked, as its children: the wait for the payload, and the contents of
// their memory.
#pragma once

#include "../baseline/endpoint.h"

#include <fcntl.h>
#include <unistd.h>

// Reads the payload. Returns whether there is one, that is, whether this process is a child.
template <size_t BYTES> bool find_payload(const char *path, char (&payload)[BYTES]) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t length = read(fd, payload, BYTES - 1);
    if (length <= 0) fail("the payload");
    payload[length] = 0;
    close(fd);
    return true;
}

// Prints that the parent is ready, and waits on standard input. In a child, standard input is /dev/null, so the read(2)
// returns 0, and the child reads its payload. Returns whether there is a payload. If there is none, this is the parent,
// and its caller has gone.
template <size_t BYTES> bool wait_for_payload(const char *path, char (&payload)[BYTES]) {
    puts("ready");
    fflush(stdout);
    char letter;
    while (read(STDIN_FILENO, &letter, 1) == 1) {
    }

    return find_payload(path, payload);
}

inline uint64_t mixed(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
