//! Volumes that are mounted by the kernel, with their real processes. The same program is the test and, with the
//! argument `process`, one of those processes.

mod basic_calls;
mod crash;
mod first_figures;
mod model;
mod mounted_volume;
mod programs;
mod suites;

use std::io::Write as _;
use std::process::ExitCode;

use farfork_volume::mount::ClientOptions;
use farfork_volume::process::{VolumeDirectory, end_with_supervisor, run_client, run_offload, run_worker};
use farfork_volume::publish::Durability;
use libtest_mimic::{Arguments, Failed, Trial};

/// The first argument of a process of a volume.
const PROCESS: &str = "process";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|argument| argument == PROCESS) {
        return run_process(&arguments[2..]);
    }
    let mut trials = Vec::new();
    for (name, test) in first_figures::TESTS {
        trials.push(trial(name, *test).with_ignored_flag(true));
    }
    for (name, test) in [basic_calls::TESTS, model::TESTS, crash::TESTS, programs::TESTS, suites::TESTS].concat() {
        trials.push(trial(name, test));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn trial(name: &str, test: fn()) -> Trial {
    Trial::test(name, move || {
        test();
        Ok::<(), Failed>(())
    })
}

/// Role, directory of the volume, mount point, durability.
fn run_process(arguments: &[String]) -> ExitCode {
    let [role, volume, mount_point, durability] = arguments else { return ExitCode::from(2) };
    end_with_supervisor().expect("prctl");
    let _ = tracing_subscriber::fmt().with_writer(std::io::stderr).try_init();
    let volume = VolumeDirectory::new(volume.as_ref());
    let durability = if durability == "disk" { Durability::Disk } else { Durability::Memory };
    let result = match role.as_str() {
        "client" => {
            let ready = || {
                println!("mounted");
                std::io::stdout().flush().expect("the supervisor reads");
            };
            run_client(&volume, mount_point.as_ref(), ClientOptions { durability }, ready).map_err(|e| e.to_string())
        }
        "offload" => run_offload(&volume, durability).map_err(|e| e.to_string()),
        _ => run_worker(&volume, durability).map_err(|e| e.to_string()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{role}: {text}");
            ExitCode::FAILURE
        }
    }
}
