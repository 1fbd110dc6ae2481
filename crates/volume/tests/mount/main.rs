//! Tests volumes with real mounts and processes. With the argument `process`, this program is one of these processes.

mod basic_calls;
mod cached_pages;
mod chain;
mod changed_sizes;
mod crash;
mod crash_matrix;
mod deaths;
mod etcd_catalog;
mod first_figures;
mod full_disk;
mod given_suites;
mod history;
mod killed_programs;
mod lost_files;
mod model;
mod model_processes;
mod mounted_volume;
mod partial_trees;
mod programs;
mod random_faults;
mod read_passthrough;
mod real_programs;
mod replaced_paths;
mod replica_check;
mod several_clients;
mod slow_links;
mod suites;
mod test_network;
mod test_node;
mod turns;
mod user_namespaces;
mod volume_cluster;
mod waiting_calls;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use farfork_volume::chain::LogCompression;
use farfork_volume::mount::MountOptions;
use farfork_volume::process::{
    CopyMethod, OffloadMode, OffloadOptions, VolumeStore, WorkPriority, end_with_supervisor, run_client, run_offload,
    run_worker,
};
use farfork_wire::NodeName;
use libtest_mimic::{Arguments, Failed, Trial};

/// Interval at which the replicas are compared during all tests. Release builds measure times, and do not compare.
const SCRUB_INTERVAL: Duration = if cfg!(debug_assertions) { Duration::from_secs(2) } else { Duration::ZERO };
/// The argument of a client whose mount has passthrough.
pub(crate) const READ_PASSTHROUGH: &str = "read-passthrough";
/// The argument of a client whose mount opens files for reading without the catalog.
pub(crate) const STALE_READS: &str = "stale-reads";
/// The argument of a client whose calls fail as soon as the catalog is known to be unreadable.
pub(crate) const SHORT_CATALOG_WAIT: &str = "short-catalog-wait";
/// The first argument of a process of a volume.
const PROCESS: &str = "process";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|argument| argument == PROCESS) {
        return run_process(&arguments[2..]);
    }
    let mut trials = Vec::new();
    // Ignored here: `make test-long` runs the long tests.
    for (name, test) in [
        first_figures::TESTS,
        model::LONG_TESTS,
        model_processes::LONG_TESTS,
        real_programs::LONG_TESTS,
        crash_matrix::LONG_TESTS,
        waiting_calls::LONG_TESTS,
        turns::LONG_TESTS,
        deaths::LONG_TESTS,
        etcd_catalog::LONG_TESTS,
        random_faults::LONG_TESTS,
        suites::LONG_TESTS,
    ]
    .concat()
    {
        trials.push(trial(name, test).with_ignored_flag(true));
    }
    trials.extend(given_suites::tests().into_iter().map(|(name, test)| trial(name, test).with_ignored_flag(true)));
    for (name, test) in [
        basic_calls::TESTS,
        cached_pages::TESTS,
        chain::TESTS,
        changed_sizes::TESTS,
        replaced_paths::TESTS,
        user_namespaces::TESTS,
        read_passthrough::TESTS,
        several_clients::TESTS,
        slow_links::TESTS,
        turns::TESTS,
        replica_check::TESTS,
        lost_files::TESTS,
        history::TESTS,
        partial_trees::TESTS,
        model::TESTS,
        model_processes::TESTS,
        crash::TESTS,
        crash_matrix::TESTS,
        etcd_catalog::TESTS,
        waiting_calls::TESTS,
        killed_programs::TESTS,
        programs::TESTS,
        real_programs::TESTS,
        suites::TESTS,
    ]
    .concat()
    {
        trials.push(trial(name, test));
    }
    // Their disks are tmpfs, which has no reflinks.
    let needs_reflinks = copy_method() == CopyMethod::None;
    trials.extend(full_disk::TESTS.iter().map(|(name, test)| trial(name, *test).with_ignored_flag(needs_reflinks)));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn trial(name: &str, test: fn()) -> Trial {
    Trial::test(name, move || {
        test();
        Ok::<(), Failed>(())
    })
}

/// Runs a process. Its arguments are role and store. The offload process also has catalog, name of the node, time of failure
/// detection and address. The client has the mount point, and the names of its options. Processes of single tests have other
/// arguments.
fn run_process(arguments: &[String]) -> ExitCode {
    let (role, store) = (arguments[0].as_str(), VolumeStore::new(arguments[1].as_ref()));
    end_with_supervisor().expect("prctl");
    let programs = [
        real_programs::PROCESSES,
        user_namespaces::PROCESSES,
        crash::PROCESSES,
        killed_programs::PROCESSES,
        model_processes::PROCESSES,
    ]
    .concat();
    if let Some((_, program)) = programs.iter().find(|(name, _)| *name == role) {
        program(&arguments[1..]);
        return ExitCode::SUCCESS;
    }
    let _ = tracing_subscriber::fmt().with_writer(std::io::stderr).try_init();
    let result = match role {
        "client" => {
            let ready = || {
                println!("mounted");
                std::io::stdout().flush().expect("the supervisor reads");
            };
            let has = |option: &str| arguments.iter().any(|argument| argument == option);
            let options = MountOptions {
                read_passthrough: has(READ_PASSTHROUGH),
                stale_reads: has(STALE_READS),
                catalog_wait: if has(SHORT_CATALOG_WAIT) { Duration::ZERO } else { MountOptions::CATALOG_WAIT },
            };
            run_client(&store, test_node::VOLUME, arguments[2].as_ref(), options, ready).map_err(|e| e.to_string())
        }
        "offload" => run_offload(&offload_options(arguments)).map_err(|e| e.to_string()),
        _ => run_worker(&store, copy_method(), work_priority()).map_err(|e| e.to_string()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{role}: {text}");
            ExitCode::FAILURE
        }
    }
}

/// The method that the tests run with: FARFORK_VOLUME_COPY, or else the default.
fn copy_method() -> CopyMethod {
    std::env::var("FARFORK_VOLUME_COPY").map_or_else(|_| CopyMethod::default(), |name| name.parse().expect("a method"))
}

/// The compression that the tests run with: FARFORK_VOLUME_COMPRESS, or else the default.
fn compression() -> LogCompression {
    let name = std::env::var("FARFORK_VOLUME_COMPRESS");
    name.map_or_else(|_| LogCompression::default(), |name| name.parse().expect("a method of compression"))
}

/// The priority that the tests run with: FARFORK_VOLUME_PRIORITY, or else the default.
fn work_priority() -> WorkPriority {
    let name = std::env::var("FARFORK_VOLUME_PRIORITY");
    name.map_or_else(|_| WorkPriority::default(), |name| name.parse().expect("a priority"))
}

fn offload_options(arguments: &[String]) -> OffloadOptions {
    OffloadOptions {
        node: NodeName::new(&arguments[3]).expect("a node name"),
        store: arguments[1].as_str().into(),
        catalog: arguments[2].parse().expect("a catalog"),
        listen: arguments[5].parse().expect("an address"),
        detection_time: Duration::from_millis(arguments[4].parse().expect("a number")),
        replica_rate_min: 64 << 10,
        scrub_interval: SCRUB_INTERVAL,
        mode: OffloadMode::On,
        copy_method: copy_method(),
        priority: work_priority(),
        compression: compression(),
        credentials: None,
    }
}
