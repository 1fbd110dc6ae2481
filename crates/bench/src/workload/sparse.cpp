// A parent whose children touch four pages each, and print the value that they compute from them.
#include "sparse.h"

#include <cstring>

// Usage: sparse MIB PAYLOAD
//
// The payload is NUMBER [hold]. A child prints `result NUMBER VALUE UNIX_NS`. With `hold` it then keeps running.
int main(int count, char **arguments) {
    if (count != 3) return 2;
    Sparse memory(strtoull(arguments[1], nullptr, 10));
    char payload[64];
    if (!wait_for_payload(arguments[2], payload)) return 0;
    char *rest;
    uint64_t number = strtoull(payload, &rest, 10);
    uint64_t value = memory.touch(number);
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    dprintf(STDOUT_FILENO, "result %lld %lld %lld\n", (long long)number, (long long)value,
            now.tv_sec * 1000000000LL + now.tv_nsec);
    if (strstr(rest, "hold")) pause();
    return 0;
}
