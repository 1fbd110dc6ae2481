//! The pager with real memory: programs that page their own memory (`program.c`), a pager with its keeper, and an owner
//! on loopback, all of which are killed, cut off and restarted. Needs root, for userfaultfd(2).
//!
//! An environment variable makes the same executable the pager, because a pager is a separate process with one thread.

mod bed;
mod caching;
mod huge;
mod killed_processes;
mod scenarios;
mod seed;
mod series;
mod settling;
mod several_seeds;
mod simulated;
mod trust_policies;
mod working_sets;
mod zygotes;

use libtest_mimic::{Arguments, Trial};

fn main() {
    if let Some(run_dir) = std::env::var_os(bed::PAGER_RUN_DIR) {
        return bed::be_pager(run_dir.into());
    }
    let trial = |(name, run): &(&str, fn())| {
        let run = *run;
        Trial::test(*name, move || {
            run();
            Ok(())
        })
    };
    let mut arguments = Arguments::from_args();
    // Run the scenarios one after the other: several pagers and programs at once would only test the scheduler.
    arguments.test_threads.get_or_insert(1);
    let all = [
        scenarios::ALL,
        huge::ALL,
        settling::ALL,
        caching::ALL,
        killed_processes::ALL,
        working_sets::ALL,
        several_seeds::ALL,
        simulated::ALL,
        trust_policies::ALL,
        zygotes::ALL,
    ]
    .into_iter()
    .flatten();
    let long = killed_processes::LONG
        .iter()
        .chain(working_sets::LONG)
        .chain(scenarios::LONG)
        .chain(simulated::LONG)
        .map(|test| trial(test).with_ignored_flag(true));
    libtest_mimic::run(&arguments, all.map(trial).chain(long).collect()).exit();
}
