//! `farfork bench fanout`: many children of one seed on several nodes. They run in turn with local forks, with and without
//! a container's namespaces, and with the kernel's work for containers. Then it measures the memory of single children.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::{BenchResults, BenchRun, Benchmark};
use crate::baseline::container::{self, BareContainerRefusal};
use crate::baseline::local_fanout::{ChildLatency, ChildNetwork, NAMESPACE_SETS};
use crate::error::BenchError;
use crate::experiment::create_methods::{CreateMethod, CreateMethods};
use crate::experiment::fanout_client::FanoutClient;
use crate::experiment::local_cluster::BenchCluster;
use crate::experiment::nodes::ClusterNode;
use crate::experiment::observer::ProcessMemory;
use crate::figure::Figure;
use crate::options::{EncryptionOption, NodeOptions, SamplesOption, count, parse_seconds, size};
use crate::report::plot::{ReportPlot, SeriesRole};
use crate::report::section::ReportSection;
use crate::report::table::{ReportCell, ReportFigure, ReportTable};
use crate::samples::FigureSamples;
use crate::workload::child_task::ChildTask;

/// Pause after a local fan-out, in which this thread answers the keep-alive probes of the nodes.
const PROBE_PAUSE: Duration = Duration::from_millis(2);

/// Number of children of each method whose memory is measured, one after the other.
const MEMORY_SAMPLES: usize = 5;

/// Measure many children of one seed: their rate, the time to each result, and the memory that each uses alone.
///
/// The benchmark starts nodes on this machine. One request starts children of one parent on all nodes. Each child touches
/// four pages of its own choice, writes a result that depends on them, and exits. The benchmark waits for the results as any
/// client does. It checks every result, and each result differs. A wrong result fails the run.
///
/// The report has floors next to each figure, measured in turn in the same run. Two floors are local forks of the same
/// memory that do the same work: with and without the namespaces of an existing container. As many run at the same time
/// as a node starts. A further floor is the work of the kernel for a child in its own container, two at the same time.
/// This work is a control group, namespaces, /proc, a network, process 1, the fork, and the end of all of them. If this
/// work is not permitted, or the machine has no unified hierarchy of control groups, the report says so.
#[derive(Debug, Args, Serialize)]
#[command(after_help = "\
Examples:
  farfork bench fanout                                  200 children on two nodes, five rounds
  farfork bench fanout --children 1000 --seconds 60 --runs 1
  farfork bench fanout --children 1000 --seconds 60 --runs 1 --net shared
  farfork bench fanout --children 100 --nodes 3 --json --samples samples.jsonl

Exit status: 0 measured, 1 failed or a result was wrong, 2 wrong usage.")]
pub(crate) struct BenchFanout {
    /// Number of children of a fan-out.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = size(1..=16_384))]
    children: u64,
    /// Number of nodes for the children. The parent is on the first node.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = count(1..=10))]
    nodes: usize,
    /// Private memory of the parent, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = size(1..=65_536))]
    mib: u64,
    /// Number of rounds. Each round measures everything once.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count(1..=1000))]
    runs: usize,
    /// Time for which each round repeats the fan-out, in seconds [default: one fan-out per round].
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<f64>,
    #[command(flatten)]
    #[serde(flatten)]
    node_options: NodeOptions,
    /// Network of the children, and of the local forks into namespaces.
    #[arg(long = "net", value_name = "KIND", default_value = "private")]
    network: ChildNetwork,
    #[command(flatten)]
    #[serde(flatten)]
    encryption: EncryptionOption,
    #[command(flatten)]
    #[serde(skip)]
    samples: SamplesOption,
}

/// Children per second in a round.
const CHILDREN: Figure = Figure::higher("children_per_s", "children", "1/s");
/// Time from the call until the first child has its result; one sample per fan-out.
const FIRST_RESULT: Figure = Figure::lower("first_result_ms", "first result", "ms");
/// Time from the call until a child has its result; one sample per child.
const RESULT: Figure = Figure::lower("result_ms", "a child's result", "ms");
/// Time from the call until the requester has a child's result; one sample per child.
const ANSWER: Figure = Figure::lower("answered_ms", "a child's result, received", "ms");
/// Private memory of a child that still runs after its result.
const OWN_MEMORY: Figure = Figure::lower("own_kib", "a child's own memory", "KiB");
/// Page tables of a child that still runs after its result.
const PAGE_TABLES: Figure = Figure::lower("page_tables_kib", "a child's page tables", "KiB");
const MEMORY: Figure = Figure::lower("memory_kib", "both", "KiB");

/// The rows of the table, the most significant first.
const FIGURES: [Figure; 7] = [CHILDREN, FIRST_RESULT, RESULT, ANSWER, OWN_MEMORY, PAGE_TABLES, MEMORY];

/// The system that creates the children.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct FanoutCase {
    by: CreateMethod,
}

impl Benchmark for BenchFanout {
    const COMMAND: &'static str = "bench fanout";
    const HOSTS_REFUSAL: Option<&'static str> =
        Some("this program measures its times, so they would have a part of the connection to the host");

    async fn measure(&self, run: &mut BenchRun) -> Result<BenchResults, BenchError> {
        let (encrypted, arguments) = (self.encryption.encrypted, self.node_options.arguments());
        let mut cluster = BenchCluster::start_nodes(&run.machines, self.nodes, encrypted, &arguments).await?;
        let mut fanouts = FanoutRun::start(self, &mut cluster).await?;
        let methods = fanouts.creators.available();
        run.expect_steps(self.runs * methods.len());
        for by in methods.repeat(self.runs) {
            run.show(by.text())?;
            fanouts.measure_round(by).await?;
            run.complete_step();
        }
        fanouts.measure_memory(&mut cluster).await?;
        let FanoutRun { creators, refusal, samples, .. } = fanouts;
        creators.stop(&mut cluster).await?;
        cluster.stop()?;
        Ok(self.results(refusal.map(|refusal| refusal.to_string()), &samples))
    }
}

/// The state of the run.
struct FanoutRun<'a> {
    plan: &'a BenchFanout,
    creators: CreateMethods,
    /// Why bare containers cannot be measured; `None` if they can.
    refusal: Option<BareContainerRefusal>,
    samples: FigureSamples<FanoutCase>,
}

impl<'a> FanoutRun<'a> {
    async fn start(plan: &'a BenchFanout, cluster: &mut BenchCluster) -> Result<Self, BenchError> {
        let samples = FigureSamples::create(&plan.samples)?;
        let fanout_client = async |nodes: &[ClusterNode], seed: &str| {
            let client = FanoutClient::new(nodes, seed, ChildTask::Sparse { mib: plan.mib }).await?;
            Ok(client.with_network(plan.network))
        };
        let creators = CreateMethods::start(cluster, plan.mib, NAMESPACE_SETS, plan.network, fanout_client).await?;
        let (creators, refusal) = match container::start(cluster.machine(), plan.mib, plan.network)? {
            Ok(bare) => (creators.with_bare(bare), None),
            Err(refusal) => (creators, Some(refusal)),
        };
        Ok(Self { plan, creators, refusal, samples })
    }

    /// Repeats fan-outs for one round.
    async fn measure_round(&mut self, by: CreateMethod) -> Result<(), BenchError> {
        let case = FanoutCase { by };
        let (mut children, mut spent) = (0, Duration::ZERO);
        while children == 0 || spent.as_secs_f64() < self.plan.seconds.unwrap_or(0.0) {
            let (took, answers) = self.fan_out(by, self.plan.children).await?;
            spent += took;
            children += answers.len();
            let first = answers.iter().map(|answer| answer.result).min().unwrap_or_default();
            self.samples.add(&case, FIRST_RESULT, to_ms(first))?;
            for ChildLatency { result, answer } in answers {
                self.samples.add(&case, RESULT, to_ms(result))?;
                self.samples.add(&case, ANSWER, to_ms(answer))?;
            }
        }
        self.samples.add(&case, CHILDREN, children as f64 / spent.as_secs_f64())
    }

    async fn fan_out(&mut self, by: CreateMethod, count: u64) -> Result<(Duration, Vec<ChildLatency>), BenchError> {
        let made = self.creators.create(by, count).await?;
        // While this thread waited for local forks, it answered no keep-alive probes of the nodes. A node closes a
        // connection on which its probes remain unanswered.
        if by != CreateMethod::Farfork {
            tokio::time::sleep(PROBE_PAUSE).await;
        }
        Ok(made)
    }

    async fn measure_memory(&mut self, cluster: &mut BenchCluster) -> Result<(), BenchError> {
        // Renew the zygotes, because idle ones ended while local forks ran. Without a zygote, the first measured child
        // would not be a copy of one.
        self.fan_out(CreateMethod::Farfork, self.plan.children).await?;
        for by in [CreateMethod::ON_EVERY_MACHINE; MEMORY_SAMPLES].concat() {
            let held = self.creators.create_held(by).await?;
            self.add_memory(by, cluster.running.read_memory(held.node.as_deref(), held.pid)?)?;
            if let Some(child) = held.child {
                cluster.kill(&child).await?;
            }
        }
        Ok(())
    }

    fn add_memory(&mut self, by: CreateMethod, memory: ProcessMemory) -> Result<(), BenchError> {
        let case = FanoutCase { by };
        self.samples.add(&case, OWN_MEMORY, memory.private)?;
        self.samples.add(&case, PAGE_TABLES, memory.page_tables)?;
        self.samples.add(&case, MEMORY, memory.private + memory.page_tables)
    }
}

fn to_ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl BenchFanout {
    /// `refusal` is the reason why bare containers were not measured.
    fn results(&self, refusal: Option<String>, samples: &FigureSamples<FanoutCase>) -> BenchResults {
        let Self { children, nodes, mib, network, .. } = self;
        let plot = ReportPlot::by_percentiles(
            "result",
            "From the request to a child's result",
            "percentile of the children",
            RESULT.unit,
        );
        let plot = CreateMethod::ALL.into_iter().fold(plot, |plot, by| {
            let role = if by == CreateMethod::Farfork { SeriesRole::Measured } else { SeriesRole::Floor };
            plot.with_series(by.text(), role, samples.percentile_points(&FanoutCase { by }, RESULT))
        });
        let question = "How long do many children of one seed take from the request to their results?";
        let section = ReportSection::new("fanout", "Fan-outs", question)
            .with_table(figure_table(samples))
            .with_plot(plot)
            .with_note(format!(
                "{children} children of {mib} MiB over {nodes} nodes, {}. No result was wrong.",
                network.text()
            ))
            .with_note(self.encryption.note())
            .with_note(
                "Floor: what the kernel must do for a child in its own container, two at once; where that was not measured, \
                 fork(2) into the namespaces of an existing container. The ratio next to a floor is farfork's median divided \
                 by it.",
            )
            .with_notes(refusal.as_ref().map(|refusal| format!("There are no bare containers: {refusal}.")));
        let figures = samples.to_json_with(None, |case, figure, mut document| {
            document["p99"] = json!(samples.percentile(case, figure, 0.99));
            document["max"] = json!(samples.percentile(case, figure, 1.0));
            Some(document)
        });
        let mut plan = json!(self);
        plan["seconds"] = json!(self.seconds.unwrap_or(0.0));
        let document = json!({ "plan": plan, "bare_container_refused": refusal, "figures": figures });
        BenchResults::new(section, document)
    }
}

fn figure_table(samples: &FigureSamples<FanoutCase>) -> ReportTable {
    let [farfork, floors @ ..] = CreateMethod::ALL.map(|by| FanoutCase { by });
    let names = CreateMethod::ALL.map(CreateMethod::text);
    let columns = ["figure", names[0], "farfork, p99", names[1], names[2], names[3]];
    let mut table = ReportTable::new("fanout", "A fan-out", &columns);
    for figure in FIGURES {
        let floor = floors[..2].iter().find_map(|floor| samples.median(floor, figure));
        let p99 = samples.percentile(&farfork, figure, 0.99);
        let floors = floors.iter().map(|floor| {
            let ratio = samples.ratio(&farfork, floor, figure);
            ReportCell::from(samples.figure(floor, figure).map(|figure| figure.with_farfork_ratio(ratio)))
        });
        let cells = [
            ReportCell::text(figure.name),
            samples.figure(&farfork, figure).map(|measured| measured.with_floor(floor)).into(),
            p99.map(|p99| ReportFigure::single(p99, figure.unit, figure.better)).into(),
        ];
        table.add_row(cells.into_iter().chain(floors));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::{
        BareContainerRefusal, BenchFanout, CHILDREN, CreateMethod, FanoutCase, FigureSamples, RESULT, SamplesOption,
    };
    use crate::options::parse_arguments;

    fn samples(rates: &[(CreateMethod, f64)]) -> FigureSamples<FanoutCase> {
        let mut samples = FigureSamples::create(&SamplesOption::default()).unwrap();
        for (by, per_s) in rates.iter().copied() {
            samples.add(&FanoutCase { by }, CHILDREN, per_s).unwrap();
            samples.add(&FanoutCase { by }, RESULT, 1e6 / per_s).unwrap();
        }
        samples
    }

    #[test]
    fn floors_are_shown_next_to_farfork() {
        let plan: BenchFanout = parse_arguments(&["--children", "100", "--net", "shared"]);
        let farfork = (CreateMethod::Farfork, 500.0);
        let local =
            samples(&[farfork, (CreateMethod::LocalForkIntoNamespaces, 2000.0), (CreateMethod::LocalFork, 4000.0)]);
        let results = plan.results(Some(BareContainerRefusal::NoUnifiedHierarchy.to_string()), &local);
        let (text, document) = (results.to_text(), results.to_json());
        assert!(text.contains("(0.25 ×)") && text.contains("0.12 ×"), "{text}");
        assert!(text.contains("There are no bare containers: there is no unified hierarchy"), "{text}");
        assert!(document["bare_container_refused"].is_string(), "{document}");
        assert!(text.contains("a network for all") && document["plan"]["network"] == "shared", "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
        assert_eq!(document["figures"].as_array().unwrap().len(), 6, "{document}");
        assert_eq!((&document["plan"]["children"], document["plan"].get("samples")), (&100.into(), None));
        let results = plan.results(None, &samples(&[farfork, (CreateMethod::BareContainer, 1000.0)]));
        let document = results.to_json();
        assert_eq!(document["section"]["tables"][0]["rows"][0][3]["figure"]["farfork_ratio"], 0.5, "{document}");
        assert!(!results.to_text().contains("no bare") && document["bare_container_refused"].is_null());
    }
}
