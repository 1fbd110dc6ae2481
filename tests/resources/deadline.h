/* Structure of parameters for sched_setattr(2) with deadline scheduling. C libraries lack it. */
#include "resource.h"

#include <sched.h>

struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};
