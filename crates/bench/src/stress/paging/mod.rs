//! `farfork stress paging`: rounds of seeds and children on nodes with injected faults, until the time is over or a
//! round has failed.
//!
//! Before the first round and after the last it counts the nodes' resources (`leak_check`) and measures how fast they
//! fork (`fork_rate`).

mod cluster;
mod fanout;
mod fork_rate;
mod round;
mod script;
mod tally;
mod verdict;

use std::io::{IsTerminal as _, stderr};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use farfork_terminal::interrupt::InterruptFlag;
use farfork_terminal::output;
use fastrand::Rng;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::json;

use self::fork_rate::ForkRate;
use self::round::SoakRound;
use self::script::RoundScript;
use self::tally::SoakTally;
use crate::GlobalArgs;
use crate::baseline::local_fanout::LOCAL_FANOUT;
use crate::error::BenchError;
use crate::experiment::leak_check::ResourceCount;
use crate::machine::source::{HostOptions, MachineNeeds, MachineSource};
use crate::options::{EncryptionOption, parse_seconds};
use crate::workload::memory_walk::MEMORY_WALK;
use crate::workload::sparse::SPARSE;

use super::{unread_lines, until_interrupt, verdict};

// script ──▶ round ──▶ verdict ──▶ tally        `script` and `verdict` are pure
//              │  cluster: the nodes, and the faults injected into them
//              │  fanout: many children at once

/// Minimum length of a run whose rates are judged, in seconds. A shorter run is usually one of many tests. Its two
/// measurements differ mainly by the load of the other tests.
const RATES_JUDGED_FROM_S: f64 = 300.0;

/// Errors that daemons log because the test kills and stops their pagers.
const EXPECTED_ERRORS: [&str; 3] = [
    "the pager has ended; see pager.log",
    "this node takes no children",
    "pager, keeper and holder have ended; starting the pager again",
];

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
/// processes, namespaces, mounts, control groups and files than before, and hardly more descriptors, threads and memory. Neither a
/// daemon nor the kernel may have logged an error, except that a pager has ended or does not answer.
#[derive(Debug, Args)]
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
    #[command(flatten)]
    encryption: EncryptionOption,
}

/// Result of a run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct SoakOutcome {
    /// Totals of all rounds.
    #[serde(flatten)]
    pub(crate) tally: SoakTally,
    /// Duration of the rounds, in seconds, without the resource counts.
    pub(crate) elapsed_s: f64,
    /// The nodes' resources before and after.
    pub(crate) counts: Vec<ResourceCount>,
    /// The rate of forks before the first round.
    pub(crate) rate_before: ForkRate,
    /// The rate of forks after the last round.
    pub(crate) rate_after: ForkRate,
    /// A sentence for each log that could not be read.
    pub(crate) unread_logs: Vec<String>,
}

impl SoakOutcome {
    /// Whether the run has passed.
    pub(crate) fn has_passed(&self) -> bool {
        self.tally.faults.is_empty()
    }
}

impl StressPaging {
    pub(crate) fn run(self, hosts: &HostOptions, strict: bool, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let needs = MachineNeeds {
            command: "stress paging",
            root_reason: "it traces processes, and makes namespaces and control groups",
            hosts_refusal: Some("it kills nodes and cuts their links, which would harm the children of others"),
        };
        let farfork = MachineSource::open(hosts, needs, global)?.farfork;
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
        if !global.json {
            output::print_line(&format!("seed {seed}, {} s", self.seconds));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let outcome = runtime.block_on(self.soak(seed, &farfork, strict, &mut show_progress(self.seconds)?))?;
        if global.json {
            let plan = json!({ "seconds": self.seconds, "seed": seed, "encrypted": self.encryption.encrypted });
            output::print_json(&json!({ "plan": plan, "passed": outcome.has_passed(), "outcome": outcome }));
        } else {
            output::print_line(&outcome_text(seed, &outcome));
        }
        Ok(verdict(outcome.has_passed()).0)
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
        until_interrupt(&interruption)
    })
}

fn tally_text(tally: &SoakTally) -> String {
    let SoakTally { rounds, children, pages_verified, .. } = tally;
    format!("{rounds} rounds, {children} children, {pages_verified} pages verified, {} actions", tally.actions_count())
}

fn outcome_text(seed: u64, outcome: &SoakOutcome) -> String {
    let SoakOutcome { tally, elapsed_s, counts, rate_before, rate_after, unread_logs } = outcome;
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
    lines.extend(unread_lines(unread_logs));
    let (_, verdict) = verdict(outcome.has_passed());
    lines.push(format!("{verdict}; to repeat the choices: farfork stress paging --seed {seed}"));
    lines.join("\n")
}

impl StressPaging {
    /// Runs rounds until the time is over or a round has failed. `show` receives the tally after each round, and may end the
    /// run early. The rounds until then are judged. `farfork` is the program that runs the daemons.
    ///
    /// # Errors
    /// The run cannot be started or continued.
    async fn soak(
        &self,
        seed: u64,
        farfork: &Path,
        strict: bool,
        show: &mut dyn FnMut(&SoakTally, Duration) -> ControlFlow<()>,
    ) -> Result<SoakOutcome, BenchError> {
        let mut nodes = cluster::start_nodes(farfork, self.encryption.encrypted).await?;
        nodes.nodes().iter().try_for_each(|node| MEMORY_WALK.install(node.machine()))?;
        [&SPARSE, &LOCAL_FANOUT].into_iter().try_for_each(|program| program.install(nodes.nodes()[0].machine()))?;
        let (mut tally, mut rng) = (SoakTally::default(), Rng::with_seed(seed));
        let calm = RoundScript::without_faults(&mut rng);
        SoakRound::new(&mut nodes, &mut tally).run(&calm).await?;
        let judges_rates = self.seconds >= RATES_JUDGED_FROM_S;
        let rate_before = fork_rate::measure_first(&nodes, judges_rates).await?;
        cluster::wait_for_no_zygotes(&nodes).await?;
        let before = nodes.count_steady_resources().await?;
        let log_ends = nodes.log_ends()?;
        let began = Instant::now();
        while began.elapsed().as_secs_f64() < self.seconds && tally.faults.is_empty() {
            let round_script = RoundScript::random(&mut rng);
            SoakRound::new(&mut nodes, &mut tally).run(&round_script).await?;
            tally.rounds += 1;
            if show(&tally, began.elapsed()).is_break() {
                break;
            }
        }
        let elapsed_s = began.elapsed().as_secs_f64();
        let rate_after = fork_rate::measure_last(&nodes, &rate_before, judges_rates).await?;
        if judges_rates && elapsed_s >= RATES_JUDGED_FROM_S && !rate_after.is_not_slower_than(&rate_before) {
            tally.record_failure(format!("{rate_after:?} at the end, {rate_before:?} at the start"));
        }
        cluster::wait_for_no_zygotes(&nodes).await?;
        let counts = nodes.wait_released(&before).await?;
        counts.iter().filter_map(ResourceCount::leak_text).for_each(|leak| tally.record_failure(leak));
        let logs = nodes.find_errors(log_ends, &EXPECTED_ERRORS)?;
        tally.faults.extend(logs.faults(strict));
        tally.faults.extend(nodes.stop()?);
        Ok(SoakOutcome { tally, elapsed_s, counts, rate_before, rate_after, unread_logs: logs.unread })
    }
}
