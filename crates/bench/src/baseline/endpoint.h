// The clock, addresses and fatal errors of the floors and of the measured programs.
#pragma once

#include <arpa/inet.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <netinet/in.h>

[[noreturn]] inline void fail(const char *what) {
    std::perror(what);
    std::exit(1);
}

inline int64_t now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

inline sockaddr_in address(const char *ip, int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    if (inet_pton(AF_INET, ip, &address.sin_addr) != 1) fail("address");
    return address;
}
