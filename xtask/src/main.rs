//! `cargo xtask tidy|check|test|test-long|test-fresh|e2e|bench|deny|fuzz|setup`: the project's checks and test runs.
//! The Makefile and CI call it.
//!
//! It uses only the standard library, `anyhow` and the signals of `tokio`, so that it builds in seconds. This file selects
//! the module of a command.
#![forbid(unsafe_code)]

mod child;
mod deny;
mod fuzz;
mod pipeline;
mod setup;
mod socket_options;
mod terminal;
mod tidy;
mod workspace;

use std::process::ExitCode;

use terminal::print_note;
use workspace::Workspace;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  tidy [--lower]      style checked as a test: layers, names, lengths, documents; --lower writes the ratchets' new counts
  check               in minutes, between commits: format, tidy, lints, unit tests, forty end-to-end tests (root)
  test                everything CI runs: format, tidy, lints, licences, unit tests, fuzz targets, end-to-end tests
  test-long [FILTER …]
                      the long tests, which `test` leaves out: unit, then end-to-end (root; an hour or more)
  test-fresh [FILTER …]
                      tests as on a machine that was just installed: of containers and clusters, and end-to-end (root)
  e2e [FILTER …]      the end-to-end tests only (root); what follows is passed to them
  bench [OPTION …]    `farfork bench fork` of a release build (root); what follows is passed on
  deny [--advisories] licences, bans and sources of the dependencies; with the flag, known vulnerabilities too
  fuzz [--seconds N] [TARGET …]
                      the fuzz targets, or those named, for a minute or N seconds each, side by side
  socket-options      update the differ's names of socket options from the kernel's headers
  setup               install the system and Python packages that the tests need (root)";

/// Exit status for wrong usage. The farfork command uses the same.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = arguments.split_first() else {
        print_note(USAGE);
        return ExitCode::from(EXIT_USAGE);
    };
    child::end_run_by_signal().expect("signals can be waited for");
    let workspace = Workspace::of_this_build();
    let outcome = match (command.as_str(), rest) {
        ("tidy", []) => tidy::run(&workspace),
        ("tidy", [flag]) if flag == "--lower" => tidy::lower(&workspace),
        ("check", []) => pipeline::check(&workspace),
        ("test", []) => pipeline::test(&workspace),
        ("test-long", filters) => pipeline::test_long(&workspace, filters),
        ("test-fresh", filters) => pipeline::test_fresh(&workspace, filters),
        ("e2e", filters) => pipeline::end_to_end(&workspace, filters),
        ("bench", options) => pipeline::bench(&workspace, options),
        ("deny", []) => deny::run(&workspace, deny::Scope::Offline),
        ("deny", [flag]) if flag == "--advisories" => deny::run(&workspace, deny::Scope::WithAdvisories),
        ("fuzz", arguments) => fuzz::run(&workspace, arguments),
        ("socket-options", []) => socket_options::run(&workspace),
        ("setup", []) => setup::run(&workspace),
        _ => {
            print_note(USAGE);
            return ExitCode::from(EXIT_USAGE);
        }
    };
    terminal::flush(None);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<pipeline::RunFailed>() => ExitCode::FAILURE,
        Err(error) => {
            print_note(format_args!("xtask {command}: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
