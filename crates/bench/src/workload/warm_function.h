// The function that runs at each warm start. `warm_function.rs` computes the same value to check it.
#pragma once

#include "parent.h"

struct Request {
    uint64_t number;
};

struct Answer {
    uint64_t number, value;
};

// The number of an answer if the call failed. The value is the length of an error text, and the text follows. Only Python
// functions fail.
const uint64_t FAILED_CALL = UINT64_MAX;

inline uint64_t run_function(uint64_t number, uint64_t steps) {
    uint64_t value = mixed(number);
    for (uint64_t i = 0; i < steps; i++) value = mixed(value + i);
    return value;
}

// Answers requests until the connection ends.
inline void serve(int socket, uint64_t steps) {
    Request request;
    while (read(socket, &request, sizeof request) == sizeof request) {
        Answer answer = {request.number, run_function(request.number, steps)};
        if (write(socket, &answer, sizeof answer) != sizeof answer) return;
    }
}
