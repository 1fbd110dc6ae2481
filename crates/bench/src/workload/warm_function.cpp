// A parent whose children wait for requests. Each connects to a socket, sends its index, and answers one request after
// another. Between two requests it is paused.
#include "warm_function.h"

#include <cstring>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

namespace {

int connect_to(const char *path) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path, strlen(path));
    int end = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (end < 0 || connect(end, (sockaddr *)&address, sizeof address)) fail("connect");
    return end;
}

} // namespace

// Usage: warm_function MIB PAYLOAD
//
// The payload is INDEX STEPS SOCKET.
int main(int count, char **arguments) {
    if (count != 3) return 2;
    uint64_t bytes = strtoull(arguments[1], nullptr, 10) << 20;
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("memory");
    memset(memory, 1, bytes);
    char payload[256], path[sizeof(sockaddr_un::sun_path)];
    if (!wait_for_payload(arguments[2], payload)) return 0;
    unsigned long long index, steps;
    if (sscanf(payload, "%llu %llu %107s", &index, &steps, path) != 3) return 2;
    int end = connect_to(path);
    uint64_t which = index;
    if (write(end, &which, sizeof which) != sizeof which) return 1;
    serve(end, steps);
    return 0;
}
