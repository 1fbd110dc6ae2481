// Shared by programs that run as a parent and, forked, as its children: the wait between the two, and the contents of
// their memory.
#pragma once

#include "../baseline/endpoint.h"

#include <fcntl.h>
#include <unistd.h>

// Reads what a child was given, if this is one.
template <size_t BYTES> bool find_payload(const char *path, char (&payload)[BYTES]) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t length = read(fd, payload, BYTES - 1);
    if (length <= 0) fail("the payload");
    payload[length] = 0;
    close(fd);
    return true;
}

// Says that the parent is ready, and waits on its standard input, which in a child is /dev/null: the read(2) returns 0, and the
// child reads its payload. Tells whether there is one: without the file this is the parent, and whoever drove it is gone.
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
