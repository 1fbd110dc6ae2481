/* Actions in addition to the resources of process.c, in the order in which they run. Actions that drop privileges are
 * last. */
#pragma once

#include "calls_files.h"
#include "calls_process.h"
#include "calls_sockets.h"
#include "calls_waits.h"

struct action {
    const char *name;
    void (*perform)(void);
    int is_refused; /* prepare may refuse a process with this action */
};

/* Must run before the process has threads and children, which would stay in the old namespaces. */
static const struct action first_actions[] = {
    {"other names", rename_host, 1},
    {"own namespaces", enter_own_names, 0},
};

static const struct action actions[] = {
    {"old calls", use_old_calls, 0},
    {"new ways to open", open_by_new_calls, 0},
    {"renamed files", rename_open_files, 0},
    {"deleted names", delete_open_files, 0},
    {"modes and owners", change_modes, 0},
    {"times", change_times, 0},
    {"sizes", change_sizes, 0},
    {"attributes of files", set_attributes, 0},
    {"places in files", move_in_files, 0},
    {"flags by ioctl", set_flags_by_ioctl, 0},
    {"moved pipe data", move_pipe_data, 0},
    {"removed watch", remove_a_watch, 0},
    {"lease for reading", lease_for_reading, 0},
    {"fanotify", watch_a_file_system, 1},
    {"moved memory", move_memory, 0},
    {"reordered pages", remap_pages, 0},
    {"protection keys", protect_by_key, 0},
    {"locked memory", lock_memory, 0},
    {"all memory locked", lock_all_memory, 0},
    {"advice", advise_from_outside, 0},
    {"memory written by number", write_from_outside, 0},
    {"memory policy", set_memory_policy, 0},
    {"moved pages", move_pages_of_nodes, 0},
    {"sealed memory", seal_memory, 1},
    {"secret memory", hide_memory, 1},
    {"detached segment", detach_segment, 0},
    {"keys", make_keys, 0},
    {"userfaultfd", make_userfaultfd, 1},
    {"TCP connections", connect_to_itself, 0},
    {"UDP of both versions", make_udp_of_both_versions, 0},
    {"messages", send_messages, 0},
    {"netlink", make_netlink, 0},
    {"new sockets", make_new_sockets, 0},
    {"raw socket", make_raw_socket, 1},
    {"signals by all ways", send_signals_by_all_ways, 0},
    {"old timers", set_old_timers, 0},
    {"prctl values", set_prctls, 0},
    {"segment bases", set_segment_bases, 0},
    {"named memory", name_regions, 0},
    {"descriptor table", set_ldt, 1},
    {"I/O priority", set_io_priority, 0},
    {"io_uring", make_ring_of_requests, 1},
    {"message queue", make_message_queue, 1},
    {"perf event", make_perf_event, 1},
    {"BPF map", make_bpf_map, 1},
    {"mount descriptors", make_mount_descriptors, 1},
    {"asynchronous I/O", make_asynchronous_requests, 1},
    {"process group", change_own_group, 0},
    {"children", begin_children, 0},
    {"ended children", leave_children, 0},
    {"sharers", begin_sharers, 0},
    {"waits for streams", wait_for_streams, 0},
    {"waits for sockets", wait_for_sockets, 0},
    {"waits for readiness", wait_for_readiness, 0},
    {"waits for words and time", wait_for_words_and_time, 0},
    {"waits for a child", wait_for_child, 0},
    {"waits for a lock", wait_for_lock, 0},
    {"waits for objects", wait_for_objects, 0},
    {"semaphores and queue", make_semaphores_and_queue, 0},
    {"registrations", register_with_kernel, 0},
    {"policies of scheduling", schedule, 0},
    {"limits by all ways", set_limits_by_all_ways, 0},
    {"rules of access", restrict_to_ruleset, 1},
    {"current directory", change_directory, 0},
    {"root", change_root, 0},
    {"capabilities", give_up_capabilities, 0},
    {"other ids", change_ids, 0},
};
