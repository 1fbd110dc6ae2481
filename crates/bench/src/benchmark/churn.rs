//! `farfork bench churn`: children that change their memory while it is still being fetched, in turn with the same program
//! without a fork. `churn.cpp` is the program.

use std::fmt::{self, Display};

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::{BenchResults, BenchRun, Benchmark};
use crate::error::BenchError;
use crate::experiment::local_cluster::BenchCluster;
use crate::figure::{ChildPlace, Figure};
use crate::machine::Machine;
use crate::machine::program::{EmbeddedProgram, parse_numbers};
use crate::options::{EncryptionOption, SamplesOption, count, size};
use crate::report::plot::{BarTitles, ReportPlot, SeriesRole};
use crate::report::section::ReportSection;
use crate::report::table::{ReportCell, ReportFigure, ReportTable};
use crate::samples::FigureSamples;
use crate::workload::start_parent;

/// Measure programs that change much of their memory while it arrives.
///
/// The benchmark starts two nodes on this machine. A child releases memory and fills it again as an allocator does, moves
/// memory, or copies live objects as a garbage collector does. Or it forks a hundred processes, or gets a signal every
/// 200 µs.
///
/// Each child runs on its parent's node and on the other node, in turn with the same program without a fork. Each child
/// checks its memory. A wrong page fails the run.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farfork bench churn
  farfork bench churn --mib 16 --runs 3 --json --samples samples.jsonl

Exit status: 0 measured, 1 failed or a page was wrong, 2 wrong usage.")]
pub(crate) struct BenchChurn {
    /// Private memory of the program, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = size(1..=65_536))]
    mib: u64,
    /// Number of rounds. Each round measures everything once.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count(1..=1000))]
    runs: usize,
    #[command(flatten)]
    encryption: EncryptionOption,
    #[command(flatten)]
    samples: SamplesOption,
}

/// The time of an operation. It is recorded in µs, and shown in ms.
const TIME: Figure = Figure::lower("time", "time", "µs");

/// An operation, and where it runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct ChurnCase {
    deed: ChurnOperation,
    /// `None` for the program without a fork.
    node: Option<ChildPlace>,
}

/// Where each operation runs, in turn, and the name of its column.
const PLACES: [(Option<ChildPlace>, &str); 3] =
    [(None, "unforked"), (Some(ChildPlace::Own), "own node"), (Some(ChildPlace::Other), "other node")];

impl Benchmark for BenchChurn {
    const COMMAND: &'static str = "bench churn";
    const HOSTS_REFUSAL: Option<&'static str> = None;

    async fn measure(&self, run: &mut BenchRun) -> Result<BenchResults, BenchError> {
        let mut cluster = BenchCluster::start(&run.machines, self.encryption.encrypted).await?;
        cluster.install(&CHURN)?;
        let parent = start_parent(&CHURN, cluster.machine(), self.mib, None)?;
        let seed = cluster.prepare(parent.pid()).await?.seed;
        let mut samples = FigureSamples::create(&self.samples)?;
        run.expect_steps(self.runs * ChurnOperation::ALL.len() * PLACES.len());
        for deed in [ChurnOperation::ALL].repeat(self.runs).concat() {
            for (node, _) in PLACES {
                run.show(deed.text())?;
                let us = match node {
                    Some(place) => parse_duration_us(&cluster.fork(&seed, place, &deed.to_string()).await?.output)?,
                    None => measure_unforked_us(cluster.machine(), self.mib, deed)?,
                };
                samples.add(&ChurnCase { deed, node }, TIME, us)?;
                run.complete_step();
            }
        }
        cluster.drop_seed(&seed).await?;
        cluster.stop()?;
        Ok(self.results(&samples))
    }
}

impl BenchChurn {
    fn results(&self, samples: &FigureSamples<ChurnCase>) -> BenchResults {
        let title = "Programs that change their memory while it arrives";
        let mut table = ReportTable::new("churn", title, &["program", PLACES[0].1, PLACES[1].1, PLACES[2].1]);
        for deed in ChurnOperation::ALL {
            let spread = |node| samples.spread(&ChurnCase { deed, node }, TIME).map(|spread| spread.scaled(1e-3));
            let cells = PLACES.map(|(node, _)| {
                let floor = spread(None).filter(|_| node.is_some()).map(|unforked| unforked.median);
                spread(node).map(|spread| ReportFigure::lower(spread, "ms").with_floor(floor)).into()
            });
            table.add_row([ReportCell::text(deed.text())].into_iter().chain(cells));
        }
        let role = |node: Option<_>| if node.is_some() { SeriesRole::Measured } else { SeriesRole::Floor };
        let titles = BarTitles { plot: "Programs that change their memory", axis: "time" };
        let plot = ReportPlot::bars_of_table(&table, "churn", titles, &PLACES.map(|(node, name)| (name, role(node))));
        let question = "How much longer does a program take in a child if it changes its memory while that arrives?";
        let section = ReportSection::new("churn", "Changing memory", question)
            .with_table(table)
            .with_plot(plot)
            .with_note(format!("Each program has {} MiB. No page was wrong.", self.mib))
            .with_note(self.encryption.note())
            .with_note("Floor: the same program, unforked.");
        let figures = samples.to_json_with(Some("us"), |case, _, mut document| {
            document["unforked_ratio"] = json!(samples.ratio(case, &ChurnCase { node: None, ..case.clone() }, TIME));
            Some(document)
        });
        let document = json!({ "mib": self.mib, "encrypted": self.encryption.encrypted, "figures": figures });
        BenchResults::new(section, document)
    }
}

const CHURN: EmbeddedProgram =
    EmbeddedProgram { name: "churn", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/churn")) };

/// How the program changes its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum ChurnOperation {
    Decay,
    Remap,
    Collect,
    Forks,
    Signals,
}

impl ChurnOperation {
    const ALL: [Self; 5] = [Self::Decay, Self::Remap, Self::Collect, Self::Forks, Self::Signals];

    /// The text for people.
    fn text(self) -> &'static str {
        match self {
            Self::Decay => "an allocator frees and fills",
            Self::Remap => "blocks move, grow and shrink",
            Self::Collect => "a collector copies live pages",
            Self::Forks => "a hundred processes at once",
            Self::Signals => "a signal every 200 µs",
        }
    }
}

/// The name of the operation for the program.
impl Display for ChurnOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Decay => "decay",
            Self::Remap => "remap",
            Self::Collect => "collect",
            Self::Forks => "forks",
            Self::Signals => "signals",
        })
    }
}

/// Measures the time of an operation in a process that was never forked, in µs.
fn measure_unforked_us(machine: &dyn Machine, mib: u64, deed: ChurnOperation) -> Result<f64, BenchError> {
    let payload = machine.write_file("deed", "644", deed.to_string().as_bytes())?;
    let output = machine.run(CHURN.name, CHURN.command(machine).arg(mib.to_string()).arg(payload), &[])?;
    let stdout = String::from_utf8_lossy(&output);
    parse_duration_us(stdout.trim().strip_prefix("ready\n").unwrap_or(&stdout))
}

/// Parses a child's output. Returns the time of its operation, in µs.
///
/// # Errors
/// The output has another form, or pages were wrong.
fn parse_duration_us(output: &str) -> Result<f64, BenchError> {
    match parse_numbers(CHURN.name, output, "churned")? {
        [us, 0] => Ok(us as f64),
        [_, wrong] => Err(BenchError::WrongMemory { count: wrong.unsigned_abs(), what: "pages of a program" }),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        BenchChurn, ChildPlace, ChurnCase, ChurnOperation, EncryptionOption, FigureSamples, SamplesOption, TIME,
        parse_duration_us,
    };

    #[test]
    fn a_child_is_compared_with_the_unforked_program() {
        let mut samples = FigureSamples::create(&SamplesOption::default()).unwrap();
        for (node, us) in [(None, 20_000.0), (Some(ChildPlace::Other), 30_000.0)] {
            samples.add(&ChurnCase { deed: ChurnOperation::Decay, node }, TIME, us).unwrap();
        }
        let encryption = EncryptionOption { encrypted: true };
        let plan = BenchChurn { mib: 64, runs: 1, encryption, samples: SamplesOption::default() };
        let results = plan.results(&samples);
        let (text, document) = (results.to_text(), results.to_json());
        let figures = document["figures"].as_array().unwrap();
        let other = figures.iter().find(|figure| figure["node"] == "other").unwrap();
        assert_eq!((&other["deed"], &other["unforked_ratio"]), (&"decay".into(), &1.5.into()), "{document}");
        assert!(text.contains("1.50") && text.contains("30.0"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
    }

    #[test]
    fn wrong_pages_are_an_error() {
        assert_eq!(parse_duration_us("churned 1500 0\n").unwrap(), 1500.0);
        assert!(parse_duration_us("churned 1500 2\n").unwrap_err().to_string().starts_with("2 pages"));
        assert!(parse_duration_us("ready\n").is_err());
    }
}
