//! One program per kind of process state (`tests/resources/` at the root) sets it up and is forked to another node.
//! Parent and child must both find it unchanged, even if the parent ended before the child ran. State that cannot be
//! carried is refused by name, and the parent stays as it was. `docs/process-state.md` lists all of them.

mod kernel_vdso;
mod process_trees;
mod refusal;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::harness::scratch::TestDirectory;
use crate::harness::seed::kernel_waits_text;
use crate::harness::{
    Cluster, Farfork, Parent, Program, Seed, StartedChild, WAIT_TIMEOUT, require_forked_child_same, scratch,
};
use crate::test::Test;
use refusal::{refused, refused_at_stop, refused_with_note, refused_with_notes};

pub(crate) const TESTS: &[Test] = &[
    Test::shared("interval_timers", |cluster| restored(cluster, "interval_timers")),
    Test::shared("posix_timers", |cluster| restored(cluster, "posix_timers")),
    Test::shared("timers_of_ending_threads", |cluster| restored(cluster, "timers_of_ending_threads")),
    Test::shared("timerfd_ticks", |cluster| restored(cluster, "timerfd_ticks")),
    Test::shared("timerfd", |cluster| restored(cluster, "timerfd")),
    Test::shared("refused_timerfd", |cluster| {
        refused(cluster, "refused_timerfd", &["fd 3", "TFD_TIMER_CANCEL_ON_SET"]);
    }),
    Test::shared("leases", |cluster| restored(cluster, "leases")),
    Test::shared("refused_lease", |cluster| refused(cluster, "refused_lease", &["fd 3", "F_WRLCK"])),
    Test::shared("deleted_directories", |cluster| restored(cluster, "deleted_directories")),
    Test::shared("deleted_named_pipe", |cluster| restored(cluster, "deleted_named_pipe")),
    Test::shared("signalfd", |cluster| restored(cluster, "signalfd")),
    Test::shared("named_pipe", |cluster| restored(cluster, "named_pipe")),
    Test::shared("named_pipe_writers", |cluster| restored(cluster, "named_pipe_writers")),
    Test::shared("two_way_pipes", |cluster| restored(cluster, "two_way_pipes")),
    Test::shared("packet_pipe", |cluster| restored(cluster, "packet_pipe")),
    Test::shared("unread_pipe", |cluster| restored(cluster, "unread_pipe")),
    Test::shared("unix_stream_pair", |cluster| restored(cluster, "unix_stream_pair")),
    Test::shared("unix_message_pairs", |cluster| restored(cluster, "unix_message_pairs")),
    Test::shared("unix_rights", |cluster| restored(cluster, "unix_rights")),
    Test::shared("unix_rights_are_forked_again", |cluster| forked_again(cluster, "unix_rights")),
    Test::shared("refused_rights", |cluster| {
        refused_at_stop(cluster, "refused_rights", &["eventpoll", "in flight"]);
    }),
    Test::shared("unix_waiting", |cluster| restored(cluster, "unix_waiting")),
    Test::shared("unix_connectors", |cluster| restored(cluster, "unix_connectors")),
    Test::shared("refused_unix_connector", |cluster| {
        refused_at_stop(cluster, "refused_unix_connector", &["fd 4", "which user", "accept"]);
    }),
    Test::shared("refused_unix_waiting", |cluster| {
        refused_with_notes(cluster, "refused_unix_waiting", &["fd 4", "accept(2)"], &["fd 5", "peers are closed"]);
    }),
    Test::shared("refused_unix_urgent", |cluster| {
        refused_with_note(cluster, "refused_unix_urgent", &["fd 4", "urgent data"]);
    }),
    Test::shared("tcp_waiting", |cluster| restored(cluster, "tcp_waiting")),
    Test::shared("unix_listeners", |cluster| restored(cluster, "unix_listeners")),
    Test::shared("unix_files", |cluster| restored(cluster, "unix_files")),
    Test::shared("refused_unix_name", |cluster| {
        refused(cluster, "refused_unix_name", &["/there-alone/socket", "absolute path"]);
    }),
    Test::shared("refused_unix_messages", |cluster| {
        refused_with_note(cluster, "refused_unix_messages", &["fd 3", "unread messages", "read them first"]);
    }),
    Test::shared("socket_differences", |cluster| by_each_strategy(cluster, "socket_differences")),
    Test::shared("unix_connected", |cluster| restored(cluster, "unix_connected")),
    Test::shared("unix_reset", |cluster| restored(cluster, "unix_reset")),
    Test::shared("unix_outside", |cluster| restored(cluster, "unix_outside")),
    Test::shared("udp_sockets", |cluster| restored(cluster, "udp_sockets")),
    Test::shared("netlink_sockets", |cluster| restored(cluster, "netlink_sockets")),
    Test::shared("refused_netlink", |cluster| refused_with_note(cluster, "refused_netlink", &["fd 3", "kernel"])),
    Test::shared("tcp_listeners", |cluster| restored(cluster, "tcp_listeners")),
    Test::shared("tcp_outside", |cluster| restored(cluster, "tcp_outside")),
    Test::shared("tcp_inside", |cluster| restored(cluster, "tcp_inside")),
    Test::shared("refused_tcp_unsent", |cluster| {
        refused_with_notes(cluster, "refused_tcp_unsent", &["fd 4", "room"], &["fd 7", "urgent data"]);
    }),
    Test::shared("refused_tcp_waiting", |cluster| {
        refused_at_stop(cluster, "refused_tcp_waiting", &["fd 4", "accept(2)"]);
    }),
    Test::shared("inotify", |cluster| restored(cluster, "inotify")),
    Test::shared("inotify_waiting", |cluster| restored(cluster, "inotify_waiting")),
    Test::shared("process_tree", |cluster| restored(cluster, "process_tree")),
    Test::shared("a_process_tree_is_counted", process_trees::process_tree_counted),
    Test::shared("a_process_tree_is_forked_again", |cluster| forked_again(cluster, "process_tree")),
    Test::shared("a_process_that_dies_while_it_is_restored_is_named", process_trees::dies_during_restore),
    Test::shared("pending_stop", |cluster| restored(cluster, "pending_stop")),
    Test::shared("process_remains", |cluster| restored(cluster, "process_remains")),
    Test::shared("process_loop", |cluster| restored(cluster, "process_loop")),
    Test::shared("program_loop", |cluster| restored(cluster, "program_loop")),
    Test::shared("check_accepts_a_tree_whose_processes_keep_changing", process_trees::keep_changing),
    Test::shared("init_of_a_namespace", first_of_a_namespace),
    Test::shared("refused_own_namespace", |cluster| {
        refused(cluster, "refused_own_namespace", &["uts namespace"]);
    }),
    Test::shared("refused_time_namespace", |cluster| {
        refused(cluster, "refused_time_namespace", &["time namespace", "CLONE_NEWTIME"]);
    }),
    Test::shared("refused_pid_namespace", |cluster| {
        refused(cluster, "refused_pid_namespace", &["pid namespace", "CLONE_NEWPID"]);
    }),
    Test::shared("refused_threads_pid_namespace", |cluster| {
        refused(cluster, "refused_threads_pid_namespace", &["thread", "pid namespace"]);
    }),
    Test::shared("refused_users", |cluster| refused(cluster, "refused_users", &["user namespace"])),
    Test::shared("pidfd_of_a_child", |cluster| restored(cluster, "pidfd_of_a_child")),
    Test::shared("shared_memory_of_processes", |cluster| restored(cluster, "shared_memory_of_processes")),
    Test::shared("shared_memory_is_forked_again", |cluster| forked_again(cluster, "shared_memory_of_processes")),
    Test::shared("shared_memory_settles", |cluster| settled(cluster, "shared_memory_of_processes")),
    Test::shared("freezing_processes_that_share_memory_is_refused", process_trees::freeze_refused),
    Test::shared("refused_shared_memory", |cluster| {
        refused(cluster, "refused_shared_memory", &["CLONE_VM", "its parent"]);
    }),
    Test::shared("shared_files", |cluster| restored(cluster, "shared_files")),
    Test::shared("refused_shared_files", |cluster| {
        refused(cluster, "refused_shared_files", &["CLONE_FILES", "not with its parent"]);
    }),
    Test::shared("leaderless_group", |cluster| restored(cluster, "leaderless_group")),
    Test::shared("leaderless_session", |cluster| restored(cluster, "leaderless_session")),
    Test::shared("refused_session", |cluster| refused_at_stop(cluster, "refused_session", &["session"])),
    Test::shared("refused_main_thread_ended", |cluster| {
        refused(cluster, "refused_main_thread_ended", &["pid", "main thread has ended", "instead of ending"]);
    }),
    Test::shared("shared_directory", |cluster| restored(cluster, "shared_directory")),
    Test::shared("own_root", |cluster| restored(cluster, "own_root")),
    Test::shared("own_root_is_forked_again", |cluster| forked_again(cluster, "own_root")),
    Test::shared("refused_root", |cluster| refused(cluster, "refused_root", &["chroot", "removed"])),
    Test::shared("refused_thread_apart", |cluster| {
        refused(cluster, "refused_thread_apart", &["thread", "current directory of its own"]);
    }),
    Test::shared("made_as_streams", |cluster| restored(cluster, "made_as_streams")),
    Test::shared("stream_through_a_child", |cluster| restored(cluster, "stream_through_a_child")),
    Test::shared("pidfd_of_itself", |cluster| restored(cluster, "pidfd_of_itself")),
    Test::shared("path_descriptors", |cluster| restored(cluster, "path_descriptors")),
    Test::shared("deleted_files", |cluster| restored(cluster, "deleted_files")),
    Test::shared("deleted_files_are_forked_again", |cluster| forked_again(cluster, "deleted_files")),
    Test::shared("lost_names", |cluster| restored(cluster, "lost_names")),
    Test::shared("differences", |cluster| by_each_strategy(cluster, "differences")),
    Test::shared("refused_file_name", |cluster| refused(cluster, "refused_file_name", &["mapping", "rename the file"])),
    Test::shared("refused_path_name", |cluster| refused(cluster, "refused_path_name", &["fd 3", "UTF-8"])),
    Test::shared("refused_lost_name", |cluster| refused(cluster, "refused_lost_name", &["fd 3", "hard link"])),
    Test::shared("epoll_targets", |cluster| restored(cluster, "epoll_targets")),
    Test::shared("epoll_in_flight", |cluster| restored(cluster, "epoll_in_flight")),
    Test::shared("epoll_oneshot", |cluster| restored(cluster, "epoll_oneshot")),
    Test::shared("refused_epoll_target", |cluster| {
        refused(cluster, "refused_epoll_target", &["fd 3", "outside of the tree"]);
    }),
    Test::shared("socket_errors", |cluster| restored(cluster, "socket_errors")),
    Test::shared("connect_in_progress", |cluster| by_each_strategy(cluster, "connect_in_progress")),
    Test::shared("refused_connect_error", |cluster| {
        refused_at_stop(cluster, "refused_connect_error", &["fd 3", "connect(2) has failed", "SO_ERROR"]);
    }),
    Test::shared("refused_error_queue", |cluster| {
        refused_at_stop(cluster, "refused_error_queue", &["fd 3", "MSG_ERRQUEUE"]);
    }),
    Test::shared("socket_owners", |cluster| restored(cluster, "socket_owners")),
    Test::shared("full_queues", |cluster| restored(cluster, "full_queues")),
    Test::shared("refused_corked_udp", |cluster| {
        refused_with_note(cluster, "refused_corked_udp", &["fd 4", "MSG_MORE"])
    }),
    Test::shared("refused_proc_of_another", |cluster| {
        refused(cluster, "refused_proc_of_another", &["fd 3", "/stat", "does not descend"]);
    }),
    Test::shared("refused_kernel_file", |cluster| {
        refused(cluster, "refused_kernel_file", &["fd 3", "/proc/irq", "acts on this machine"]);
    }),
    Test::shared("refused_pressure_trigger", |cluster| {
        refused(cluster, "refused_pressure_trigger", &["fd 3", "pressure"]);
    }),
    Test::shared("deleted_executable", |cluster| restored(cluster, "deleted_executable")),
    Test::shared("uncovered_files", |cluster| restored(cluster, "uncovered_files")),
    Test::shared("refused_uncovered_directory", |cluster| {
        refused(cluster, "refused_uncovered_directory", &["fd 3", "current directory", "mount that was removed"]);
    }),
    Test::shared("refused_deep_file", |cluster| {
        refused(cluster, "refused_deep_file", &["fd 3", "PATH_MAX", "shorter path"]);
    }),
    Test::shared("refused_deep_directory", |cluster| {
        refused(cluster, "refused_deep_directory", &["current directory", "PATH_MAX", "chdir(2)"]);
    }),
    Test::shared("own_mounts", |cluster| restored(cluster, "own_mounts")),
    Test::shared("many_descriptors", |cluster| restored(cluster, "many_descriptors")),
    Test::shared("file_locks", |cluster| restored(cluster, "file_locks")),
    Test::shared("refused_device_lock", |cluster| {
        refused(cluster, "refused_device_lock", &["fd 3", "fd 4", "lock", "release it first"]);
    }),
    Test::shared("refused_childs_device_lock", |cluster| {
        refused(cluster, "refused_childs_device_lock", &["fd 3", "lock", "release it first"]);
    }),
    Test::shared("deleted_file_locks", |cluster| restored(cluster, "deleted_file_locks")),
    Test::shared("signal_driven_io", |cluster| restored(cluster, "signal_driven_io")),
    Test::shared("sealed_memfd", |cluster| restored(cluster, "sealed_memfd")),
    Test::shared("memfd_modes", |cluster| restored(cluster, "memfd_modes")),
    Test::shared("socket_options", |cluster| restored(cluster, "socket_options")),
    Test::shared("tcp_signatures", |cluster| restored(cluster, "tcp_signatures")),
    Test::shared("tcp_ended", |cluster| restored(cluster, "tcp_ended")),
    Test::shared("tcp_closed", |cluster| restored(cluster, "tcp_closed")),
    Test::shared("refused_tcp_closed", |cluster| {
        refused_with_notes(cluster, "refused_tcp_closed", &["fd 3", "waits to be accepted"], &["fd 4"]);
    }),
    Test::shared("stopped_children", |cluster| restored(cluster, "stopped_children")),
    Test::shared("shared_filters", |cluster| restored(cluster, "shared_filters")),
    Test::shared("unix_names", |cluster| restored(cluster, "unix_names")),
    Test::shared("shared_ports", |cluster| restored(cluster, "shared_ports")),
    Test::shared("refused_terminal_name", |cluster| {
        refused(cluster, "refused_terminal_name", &["fd 3", "/dev/ptmx", "close it"]);
    }),
    Test::shared("refused_terminal_hung_up", |cluster| {
        refused(cluster, "refused_terminal_hung_up", &["fd 3", "hung up", "close it"]);
    }),
    Test::shared("many_shared_areas", |cluster| restored(cluster, "many_shared_areas")),
    Test::shared("system_v_memory", |cluster| restored(cluster, "system_v_memory")),
    Test::shared("system_v_semaphores", |cluster| restored(cluster, "system_v_semaphores")),
    Test::shared("refused_message_sizes", |cluster| {
        refused_at_stop(cluster, "refused_message_sizes", &["message queue", "msg_qbytes", "receive"]);
    }),
    Test::shared("system_v_made", |cluster| restored(cluster, "system_v_made")),
    Test::shared("system_v_children", |cluster| restored(cluster, "system_v_children")),
    Test::shared("system_v_others", |cluster| restored(cluster, "system_v_others")),
    Test::shared("posix_shared_memory", |cluster| restored(cluster, "posix_shared_memory")),
    Test::shared("growing_memory", |cluster| restored(cluster, "growing_memory")),
    Test::shared("memory_advice", |cluster| restored(cluster, "memory_advice")),
    Test::shared("droppable_memory", |cluster| restored(cluster, "droppable_memory")),
    Test::shared("locked_memory", |cluster| restored(cluster, "locked_memory")),
    Test::shared("guard_pages", |cluster| restored(cluster, "guard_pages")),
    Test::shared("guards_wiped_on_fork", |cluster| restored(cluster, "guards_wiped_on_fork")),
    Test::shared("reservations", |cluster| restored(cluster, "reservations")),
    Test::shared("many_mappings", |cluster| restored(cluster, "many_mappings")),
    Test::shared("system_call_filter", |cluster| restored(cluster, "system_call_filter")),
    Test::shared("refused_filter_of_sigreturn", |cluster| {
        refused_at_stop(cluster, "refused_filter_of_sigreturn", &["thread", "seccomp", "rt_sigreturn(2)", "allow"]);
    }),
    Test::shared("privileges", |cluster| restored(cluster, "privileges")),
    Test::shared("capability_sets", |cluster| restored(cluster, "capability_sets")),
    Test::shared("limits", |cluster| restored(cluster, "limits")),
    Test::shared("session_keys", |cluster| restored(cluster, "session_keys")),
    Test::shared("refused_fork_limit", |cluster| {
        refused_at_stop(cluster, "refused_fork_limit", &["clone", "RLIMIT_NPROC", "--freeze"]);
    }),
    Test::shared("deadlines", |cluster| restored(cluster, "deadlines")),
    Test::shared("refused_deadline", |cluster| refused(cluster, "refused_deadline", &["SCHED_FLAG_RESET_ON_FORK"])),
    Test::shared("time_stamps_forbidden", |cluster| restored(cluster, "time_stamps_forbidden")),
    Test::shared("speculation", |cluster| restored(cluster, "speculation")),
    Test::shared("preferences", |cluster| restored(cluster, "preferences")),
    Test::shared("local_descriptors", |cluster| restored(cluster, "local_descriptors")),
    Test::shared("local_descriptors_are_forked_again", |cluster| forked_again(cluster, "local_descriptors")),
    Test::shared("user_dispatch", |cluster| restored(cluster, "user_dispatch")),
    Test::shared("refused_user_dispatch", |cluster| {
        refused_at_stop(cluster, "refused_user_dispatch", &["thread", "Syscall User Dispatch", "FILTER_ALLOW"]);
    }),
    Test::shared("a_comparison_makes_no_call_that_is_blocked", blocked_calls_compared),
    Test::shared("affinity", |cluster| restored(cluster, "affinity")),
    Test::shared("affinity_is_reported", affinity_is_reported),
    Test::shared("out_of_memory_score", |cluster| restored(cluster, "out_of_memory_score")),
    Test::shared("vdso", |cluster| restored(cluster, "vdso")),
    Test::alone("vdso_of_another_kernel", kernel_vdso::other_kernel_vdso),
    Test::shared("memory_barriers", |cluster| restored(cluster, "memory_barriers")),
    Test::shared("terminal_pair", |cluster| restored(cluster, "terminal_pair")),
    Test::shared("refused_terminal", |cluster| refused(cluster, "refused_terminal", &["fd 3", "/dev/pts", "other"])),
    Test::shared("refused_controlling_terminal", |cluster| {
        refused(cluster, "refused_controlling_terminal", &["/dev/tty", "open it again in the child"]);
    }),
    Test::shared("childs_terminal", |cluster| restored(cluster, "childs_terminal")),
    Test::shared("terminal_of_a_session", |cluster| restored(cluster, "terminal_of_a_session")),
    Test::shared("terminal_of_an_ended_job", |cluster| restored(cluster, "terminal_of_an_ended_job")),
    Test::shared("refused_terminal_given_up", |cluster| {
        refused_at_stop(cluster, "refused_terminal_given_up", &["fd 3", "TIOCNOTTY"]);
    }),
    Test::shared("refused_terminal_data", |cluster| {
        refused_at_stop(cluster, "refused_terminal_data", &["fd 4", "5 bytes", "wait"]);
    }),
    Test::shared("proc_files", |cluster| restored(cluster, "proc_files")),
    Test::shared("refused_io_uring", |cluster| {
        refused(cluster, "refused_io_uring", &["fd 3", "io_uring(7)", "UV_USE_IO_URING=0"])
    }),
    Test::shared("refused_userfaultfd", |cluster| refused(cluster, "refused_userfaultfd", &["fd 3", "userfaultfd"])),
    Test::shared("refused_perf", |cluster| refused(cluster, "refused_perf", &["fd 3", "perf_event"])),
    Test::shared("refused_message_queue", |cluster| {
        refused(cluster, "refused_message_queue", &["fd 3", "fd 5", "POSIX message queue"]);
    }),
    Test::shared("refused_asynchronous_io", |cluster| {
        refused(cluster, "refused_asynchronous_io", &["mapping", "io_setup"]);
    }),
    Test::shared("refused_bpf", |cluster| refused(cluster, "refused_bpf", &["fd 3", "bpf-map"])),
    Test::shared("refused_pidfd", |cluster| refused(cluster, "refused_pidfd", &["fd 3", "pidfd"])),
    Test::shared("refused_thread_pidfd", |cluster| {
        refused(cluster, "refused_thread_pidfd", &["fd 3", "fd 4", "PIDFD_THREAD"]);
    }),
    Test::shared("huge_pages_of_hugetlbfs", |cluster| restored(cluster, "huge_pages_of_hugetlbfs")),
    Test::shared("private_huge_pages", |cluster| restored(cluster, "private_huge_pages")),
    Test::shared("system_v_huge_pages", |cluster| restored(cluster, "system_v_huge_pages")),
    Test::shared("hugetlbfs_files", |cluster| restored(cluster, "hugetlbfs_files")),
    Test::shared("huge_pages_of_a_frozen_parent", huge_pages_of_a_frozen_parent),
    Test::shared("refused_landlock", |cluster| {
        refused_at_stop(cluster, "refused_landlock", &["thread", "Landlock", "landlock_restrict_self"]);
    }),
    Test::shared("refused_executable", |cluster| refused_at_stop(cluster, "refused_executable", &["executable"])),
    Test::shared("refused_sealed_area", |cluster| refused(cluster, "refused_sealed_area", &["mapping", "sealed"])),
];

/// A running program, and the file that makes it check its state when the file appears.
struct Subject {
    parent: Parent,
    told: PathBuf,
    _files: TestDirectory,
}

impl Subject {
    fn start(name: &'static str) -> Self {
        let files = scratch::directory();
        let told = files.path().join("told");
        let own = files.path().join("own");
        fs::create_dir(&own).expect("a scratch directory can be written");
        let parent = Parent::start(Program::ProcessState(name), &[&own.to_string_lossy(), &told.to_string_lossy()]);
        Self { parent, told, _files: files }
    }

    /// Lets the parent check its state. Requires that it finds the state unchanged.
    fn check(mut self) {
        fs::write(&self.told, "").expect("a scratch directory can be written");
        let (status, words) = (self.parent.wait_end(), self.parent.last_line());
        assert!(status.success() && words == "PASS", "the parent: {status}, {words}");
    }
}

/// All ways to fetch memory: the state of kernel objects must not depend on them.
const STRATEGIES: [&str; 3] = ["cow", "prefetch", "eager"];

/// Programs whose processes or threads change all the time, so the kernel's views of parent and child are not compared.
const CHANGING: [&str; 3] = ["process_loop", "program_loop", "timers_of_ending_threads"];

fn restored(cluster: &Cluster, name: &'static str) {
    if !CHANGING.contains(&name) {
        as_the_kernel_shows_it(cluster, name);
    }
    by_each_strategy(cluster, name);
}

fn by_each_strategy(cluster: &Cluster, name: &'static str) {
    for strategy in STRATEGIES {
        while_its_parent_lives(cluster, name, &["--strategy", strategy]);
        when_its_parent_has_ended(cluster, name, &["--strategy", strategy]);
    }
}

/// The kernel shows the same state of the child as of its parent.
fn as_the_kernel_shows_it(cluster: &Cluster, name: &'static str) {
    let subject = Subject::start(name);
    let seed = Seed::prepare(cluster.first(), &subject.parent);
    require_forked_child_same(cluster.first(), &seed, cluster.name(1), subject.parent.pid());
    drop(seed);
    subject.check();
}

/// Forks two children, one after the other. The first must not change anything that the second shares with it.
fn while_its_parent_lives(cluster: &Cluster, name: &'static str, options: &[&str]) {
    let subject = Subject::start(name);
    let seed = Seed::prepare(cluster.first(), &subject.parent);
    for _ in 0..2 {
        let children = seed.fork_detached(&["1".to_owned()], &[&["--to", cluster.name(1)], options].concat());
        require_pass(cluster.first(), &children);
    }
    subject.check();
}

fn when_its_parent_has_ended(cluster: &Cluster, name: &'static str, options: &[&str]) {
    let mut subject = Subject::start(name);
    let seed = Seed::prepare(cluster.first(), &subject.parent);
    let options = [&["--to", cluster.name(1), "--paused"], options].concat();
    let children = seed.fork_detached(&["1".to_owned()], &options);
    subject.parent.kill();
    cluster.first().json(&["unpause", &children[0].id]);
    require_pass(cluster.first(), &children);
}

/// A frozen parent is its own template. When the seed is dropped, it continues with its huge pages.
fn huge_pages_of_a_frozen_parent(cluster: &Cluster) {
    for name in ["private_huge_pages", "hugetlbfs_files"] {
        let subject = Subject::start(name);
        let seed = Seed::prepare_with(cluster.first(), &subject.parent, &["--freeze"]);
        for strategy in STRATEGIES {
            let options = ["--to", cluster.name(1), "--strategy", strategy];
            require_pass(cluster.first(), &seed.fork_detached(&["1".to_owned()], &options));
        }
        drop(seed);
        subject.check();
    }
}

/// Forks a tree that is itself a child, whose pages are still on other nodes. Then forks a child of that tree again.
fn forked_again(cluster: &Cluster, name: &'static str) {
    let subject = Subject::start(name);
    let first = Seed::prepare(cluster.first(), &subject.parent);
    let (mut seeds, mut middles) = (vec![first], Vec::new());
    for index in [1, 2] {
        let options = ["--to", cluster.name(index), "--strategy", "cow"];
        let middle = seeds[seeds.len() - 1].fork_idle(1, &options).remove(0);
        let seed = Seed::prepare_process(cluster.node(index), &middle.pid.to_string(), &[]);
        for to in [0, 1, 2] {
            let children = seed.fork_detached(&["1".to_owned()], &["--to", cluster.name(to)]);
            require_pass(cluster.node(index), &children);
        }
        seeds.push(seed);
        middles.push((index, middle));
    }
    for (index, middle) in middles {
        cluster.node(index).json(&["kill", "--signal", "KILL", &middle.id]);
    }
    subject.check();
}

/// Forks from an image. All pages are fetched before the first instruction.
fn settled(cluster: &Cluster, name: &'static str) {
    let subject = Subject::start(name);
    let seed = Seed::prepare_with(cluster.first(), &subject.parent, &["--sealed", "--wait"]);
    let options = ["--to", cluster.name(1), "--strategy", "cow", "--paused"];
    let children = seed.fork_detached(&["1".to_owned()], &options);
    assert_eq!(cluster.first().json(&["settle", &children[0].id])["settled"], true);
    let files = scratch::directory();
    cluster.first().json(&["core", &children[0].id, "--output", &files.path().join("core").to_string_lossy()]);
    cluster.first().json(&["unpause", &children[0].id]);
    require_pass(cluster.first(), &children);
    subject.check();
}

/// `inspect --against` makes no call in a process whose calls are dispatched to itself now (Syscall User Dispatch).
fn blocked_calls_compared(cluster: &Cluster) {
    let (subject, other) = (Subject::start("refused_user_dispatch"), Subject::start("signalfd"));
    let seed = Seed::prepare(cluster.first(), &other.parent);
    let child = seed.fork_idle(1, &["--to", cluster.name(1)]).remove(0);
    let pid = subject.parent.pid_text();
    let said = cluster.first().json_ignoring_status(&["inspect", &child.id, "--against", &pid]);
    let differences = said["differences"].as_array().expect("the two are different programs");
    let omitted = |difference: &&serde_json::Value| difference.to_string().contains("Syscall User Dispatch blocks");
    assert_eq!(differences.iter().filter(omitted).count(), 1, "{said}");
    cluster.first().json(&["kill", "--signal", "KILL", &child.id]);
    other.check();
    subject.check();
}

/// Two threads have each selected a CPU, and the third thread has not.
fn affinity_is_reported(cluster: &Cluster) {
    let subject = Subject::start("affinity");
    let seed = Seed::prepare(cluster.first(), &subject.parent);
    let child = seed.fork_idle(1, &["--to", cluster.name(1)]).remove(0);
    let told = |id: &str| cluster.first().json(&["inspect", id])["affinity"].clone();
    let chosen = told(seed.id());
    assert_eq!(chosen.as_array().map(Vec::len), Some(2), "{chosen}");
    let allowed = told(&child.id);
    let has = |set: &serde_json::Value| allowed.as_array().is_some_and(|all| all.contains(set));
    assert!(chosen.as_array().into_iter().flatten().all(has) && allowed != chosen, "{allowed}, of {chosen}");
    cluster.first().json(&["kill", "--signal", "KILL", &child.id]);
    subject.check();
}

/// The parent is pid 1 of a pid namespace. unshare(1), which started it, is not part of the tree.
fn first_of_a_namespace(cluster: &Cluster) {
    let files = scratch::directory();
    let program = Program::ProcessState("init_of_a_namespace").command();
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(program.get_program());
    command.arg(files.path()).arg(files.path().join("told")).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut outside = Outside(command.spawn().expect("unshare(1)"));
    let mut said = BufReader::new(outside.0.stdout.take().expect("a pipe"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a pipe");
    assert_eq!(line, "ready 1 0\n");
    let pid = outside.0.id();
    let inside = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("unshare(1) waits for it");
    let prepared = cluster.first().run(&["prepare", inside.trim(), "--json"]);
    prepared.require_success();
    let seed = Seed::from_json(cluster.first(), &prepared.stdout);
    require_pass(cluster.first(), &seed.fork_detached(&["1".to_owned()], &["--to", cluster.name(1)]));
    fs::write(files.path().join("told"), "").expect("a scratch directory can be written");
    let words = said.lines().map_while(Result::ok).filter(|line| !line.starts_with("tick "));
    assert_eq!(words.collect::<Vec<_>>(), ["PASS"]);
    assert!(outside.0.wait().expect("it is ours").success());
}

/// unshare(1), which is not part of the tree. Dropping it kills it and its child (`--kill-child`).
struct Outside(std::process::Child);

impl Drop for Outside {
    fn drop(&mut self) {
        // kill(2) fails if unshare(1) has ended: it runs at this point only if the test failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn require_pass(farfork: &Farfork, children: &[StartedChild]) {
    let said = farfork.json_ignoring_status(&["wait", "--results", "--timeout", WAIT_TIMEOUT, &children[0].id]);
    let end = said["children"].get(0).unwrap_or_else(|| panic!("{said}\n{}", kernel_waits_text(children)));
    let words = end["stdout"].as_str().unwrap_or_default().lines().filter(|line| !line.starts_with("tick "));
    let words: Vec<&str> = words.collect();
    assert!(end["exit_code"] == 0 && words.contains(&"PASS"), "the child: {}, {words:?}, {end}", end["exit_code"]);
}
