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

/// Have children page from each other's nodes while these are harmed, and judge.
///
/// Three nodes on this machine, and rounds of random choice: parents of 1 to 32 MiB, children with any strategy on any
/// node, children of children, fan-outs of more children than containers are ready, children with little memory, sealed seeds,
/// seeds with short leases, zygotes; meanwhile children, parents, pagers and daemons are killed, seeds dropped, links
/// cut, daemons and pagers halted for up to two seconds, children settled. Each child changes its memory all the time,
/// and compares every byte of every page with what it must be.
///
/// It passes when no child ever found a wrong byte; each ended as it should, or as it may after what was done to it, and was told
/// why; the nodes fork at least nine tenths as many children a second as before the first round, where the run took five minutes or
/// more; and they have no more processes, namespaces, mounts, control groups, files, descriptors, threads and memory afterwards than
/// before.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork stress paging                          a quarter of an hour
  farfork stress paging --seconds 60             a minute
  farfork stress paging --seed 812 --json        the choices of an earlier run again

Exit status: 0 passed, 1 failed, 2 wrong usage.")]
pub(crate) struct StressPaging {
    /// Seconds in which rounds begin.
    #[arg(long, value_name = "SECONDS", default_value_t = 900.0, value_parser = parse_seconds)]
    seconds: f64,
    /// The number that all choices come from [default: another each time].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Whether memory is encrypted between the nodes; they prove who they are either way.
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

/// Shows on a terminal how far a run is; it ends when somebody wants that.
fn show_progress(seconds: f64) -> anyhow::Result<impl FnMut(&SoakTally, Duration) -> ControlFlow<()>> {
    let interruption = InterruptFlag::watch()?;
    let bar = if stderr().is_terminal() { ProgressBar::new(seconds as u64) } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos} of {len} s: {msg}").expect("the template is right"));
    Ok(move |tally: &SoakTally, elapsed: Duration| {
        bar.set_position(elapsed.as_secs());
        bar.set_message(tally_text(tally));
        if interruption.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

fn tally_text(tally: &SoakTally) -> String {
    let SoakTally { rounds, children, pages_verified, .. } = tally;
    format!("{rounds} rounds, {children} children, {pages_verified} pages verified, {} deeds", tally.actions_count())
}

fn outcome_text(plan: &SoakParameters, outcome: &SoakOutcome) -> String {
    let SoakOutcome { tally, elapsed_s, counts, rate_before, rate_after } = outcome;
    let mut lines = vec![format!("{} in {elapsed_s:.0} s", tally_text(tally))];
    let SoakTally { seeds, sound, killed, lost, limited, refusals, .. } = tally;
    lines.push(format!(
        "{seeds} seeds; children: {sound} sound, {killed} killed, {limited} met their limit, {lost} lost pages with a seed that was taken"
    ));
    lines.push(format!(
        "{:.0} children a second at the start, {:.3} of local forks; {:.0} at the end, {:.3}",
        rate_before.per_s, rate_before.of_floor, rate_after.per_s, rate_after.of_floor
    ));
    let deeds = tally.deeds.iter().map(|(kind, count)| format!("{} {count}", kind.text()));
    lines.push(format!("deeds: {}; {refusals} requests refused meanwhile", deeds.collect::<Vec<_>>().join(", ")));
    let of_node = counts.iter().filter(|count| count.before != count.after);
    lines.extend(
        of_node.map(|count| format!("{}: {} {} before, {} after", count.node, count.of, count.before, count.after)),
    );
    lines.extend(tally.faults.iter().map(|fault| format!("FAULT: {fault}")));
    let verdict = if outcome.has_passed() { "passed" } else { "failed" };
    lines.push(format!("{verdict}; the same choices again: farfork stress paging --seed {}", plan.seed));
    lines.join("\n")
}
