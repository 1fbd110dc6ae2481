//! `farfork stress paging`: children fetch pages while processes are killed and links are cut.

use std::io::{IsTerminal as _, stderr};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use farfork_bench::{SoakOutcome, SoakParameters, SoakTally};
use farfork_terminal::interrupt::InterruptFlag;
use farfork_terminal::{output, privilege};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::commands::load::parse_seconds;
use crate::{GlobalArgs, program_path};

/// Have children fetch pages from other nodes while nodes and processes are disturbed, and judge the outcome.
///
/// The test starts three nodes on this machine, and runs rounds of random choice. A round may have parents of 1 to 32
/// MiB, children with any strategy on any node, and children of children. It may also have fan-outs of more children
/// than containers are ready, children with little memory, sealed seeds, seeds with short leases, and zygotes.
///
/// During each round, the test kills children, parents, pagers and daemons. It drops seeds, cuts links, settles
/// children, and stops daemons and pagers for up to two seconds. Each child changes its memory all the time, and
/// compares every byte of every page with the expected value.
///
/// The test passes if no child found a wrong byte, and each child ended as expected. A child that was disturbed may also
/// end as that disturbance permits, with the reason reported. After a run of five minutes or more, the nodes must fork at
/// least nine tenths as many children per second as before the first round. After each run, the nodes must have no more
/// processes, namespaces, mounts, control groups and files than before, and hardly more descriptors, threads and memory.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork stress paging                          a quarter of an hour
  farfork stress paging --seconds 60             a minute
  farfork stress paging --seed 812 --json        repeat the choices of an earlier run

Exit status: 0 passed, 1 failed, 2 wrong usage.")]
pub(crate) struct StressPaging {
    /// Time in which the test begins new rounds, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 900.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Seed of the random choices [default: a different one in each run].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Encrypt memory transfers between the nodes. The nodes authenticate each other in either case.
    #[arg(long, value_name = "on|off", value_parser = ["on", "off"], default_value = "on")]
    encryption: String,
}

impl StressPaging {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it traces processes, and makes namespaces and control groups")?;
        let farfork = program_path::farfork()?;
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
        let plan = SoakParameters { seconds: self.seconds, seed, encrypted: self.encryption == "on" };
        if !global.json {
            output::print_line(&format!("seed {seed}, {} s", self.seconds));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let outcome =
            runtime.block_on(farfork_bench::soak_paging(&plan, &farfork, &mut show_progress(self.seconds)?))?;
        if global.json {
            output::print_json(&json!({ "plan": plan, "passed": outcome.has_passed(), "outcome": outcome }));
        } else {
            output::print_line(&outcome_text(&plan, &outcome));
        }
        Ok(if outcome.has_passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Shows the progress of a run on a terminal. The run ends after an interrupt.
fn show_progress(seconds: f64) -> anyhow::Result<impl FnMut(&SoakTally, Duration) -> ControlFlow<()>> {
    let interruption = InterruptFlag::watch()?;
    let bar = if stderr().is_terminal() { ProgressBar::new(seconds as u64) } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos} of {len} s: {msg}").expect("the template is valid"));
    Ok(move |tally: &SoakTally, elapsed: Duration| {
        bar.set_position(elapsed.as_secs());
        bar.set_message(tally_text(tally));
        if interruption.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

fn tally_text(tally: &SoakTally) -> String {
    let SoakTally { rounds, children, pages_verified, .. } = tally;
    format!("{rounds} rounds, {children} children, {pages_verified} pages verified, {} actions", tally.actions_count())
}

fn outcome_text(plan: &SoakParameters, outcome: &SoakOutcome) -> String {
    let SoakOutcome { tally, elapsed_s, counts, rate_before, rate_after } = outcome;
    let mut lines = vec![format!("{} in {elapsed_s:.0} s", tally_text(tally))];
    let SoakTally { seeds, sound, killed, lost, limited, refusals, .. } = tally;
    lines.push(format!(
        "{seeds} seeds; children: {sound} sound, {killed} killed, {limited} exceeded their limit, {lost} lost pages with a dropped seed"
    ));
    lines.push(format!(
        "{:.0} children a second at the start, {:.3} of local forks; {:.0} at the end, {:.3}",
        rate_before.per_s, rate_before.of_floor, rate_after.per_s, rate_after.of_floor
    ));
    let deeds = tally.deeds.iter().map(|(kind, count)| format!("{} {count}", kind.text()));
    lines
        .push(format!("actions: {}; {refusals} requests were refused meanwhile", deeds.collect::<Vec<_>>().join(", ")));
    let of_node = counts.iter().filter(|count| count.before != count.after);
    lines.extend(
        of_node.map(|count| format!("{}: {} {} before, {} after", count.node, count.of, count.before, count.after)),
    );
    lines.extend(tally.faults.iter().map(|fault| format!("FAULT: {fault}")));
    let verdict = if outcome.has_passed() { "passed" } else { "failed" };
    lines.push(format!("{verdict}; to repeat the choices: farfork stress paging --seed {}", plan.seed));
    lines.join("\n")
}
