//! The pager with real memory: programs that page their own memory (`program.c`), a pager with its keeper, and an owner
//! on loopback, all of which are killed, cut off and restarted. Needs root, for userfaultfd(2).
//!
//! An environment variable makes the same executable the pager, because a pager is a separate process with one thread.

mod bed;
mod caching;
mod deaths;
mod huge;
mod remembering;
mod scenarios;
mod seed;
mod series;
mod settling;
mod several;
mod simulated;
mod trusting;
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
        deaths::ALL,
        remembering::ALL,
        several::ALL,
        simulated::ALL,
        trusting::ALL,
        zygotes::ALL,
    ]
    .into_iter()
    .flatten();
    let long = deaths::LONG
        .iter()
        .chain(remembering::LONG)
        .chain(scenarios::LONG)
        .chain(simulated::LONG)
        .map(|test| trial(test).with_ignored_flag(true));
    libtest_mimic::run(&arguments, all.map(trial).chain(long).collect()).exit();
}
