/* All kinds of resources of a random process, by name. */
#pragma once

#include "descriptors.h"
#include "identity.h"
#include "maps.h"
#include "memory.h"
#include "refused.h"
#include "threads.h"

static const struct {
    const char *name;
    void (*make)(void);
} kinds[] = {
    {"private memory", make_private},
    {"shared memory", make_shared},
    {"mapped file", make_mapped_file},
    {"memfd", make_memfd},
    {"System V memory", make_system_v},
    {"reservation", make_reservation},
    {"heap", make_heap},
    {"pipe", make_pipe},
    {"named pipe", make_named_pipe},
    {"eventfd", make_eventfd},
    {"timerfd", make_timerfd},
    {"signalfd", make_signalfd},
    {"epoll", make_epoll},
    {"inotify", make_inotify},
    {"socket pair", make_socket_pair},
    {"Unix listener", make_unix_listener},
    {"Unix datagram socket", make_unix_datagram},
    {"UDP socket", make_udp},
    {"TCP listener", make_tcp_listener},
    {"file", make_file},
    {"deleted file", make_deleted_file},
    {"directory", make_directory},
    {"place", make_place},
    {"device", make_device},
    {"file of /proc", make_proc_file},
    {"pidfd", make_pidfd},
    {"duplicate", make_duplicate},
    {"handlers", make_handlers},
    {"mask", make_mask},
    {"pending signals", make_pending},
    {"alternate stack", make_alternate_stack},
    {"interval timer", make_interval_timer},
    {"timers", make_timers},
    {"threads", make_threads},
    {"limits", make_limits},
    {"scheduling", make_scheduling},
    {"names", make_names},
    {"personality", make_personality},
    {"privileges", make_privileges},
    {"filter", make_filter},
    {"barriers", make_barriers},
    {"score", make_score},
};

static void (*const refused_kinds[])(void) = {
    make_lost_target, make_lost_watch,      make_lease,        make_cancelled_timer, make_foreign_owner,
    make_ring,        make_part_of_segment, make_strange_name, make_pidfd_of_parent,
};
