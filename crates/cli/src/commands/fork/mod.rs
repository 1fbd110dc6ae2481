//! `farfork fork`: starts children of a seed. This file has the arguments and starts the children; `attached` serves a
//! single attached child.

mod attached;
mod outcomes;
mod profile;
mod signals;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use farfork_fork::pager::{PagingStrategy, PagingStrategyError};
use farfork_node::EgressDestination;
use farfork_node::api::v1::{Bind, ChildOptions, ForkRequest, Network, PublishedPort};
use farfork_node::failure::Failure;
use serde_json::Value;
use tonic::Code;

use super::wait;
use crate::size::parse_nonzero_size;
use crate::{GlobalArgs, duration, output, payload};
use outcomes::{ChildOutcome, ForkedChildren};
use profile::Profile;
use signals::{SIGTERM, SignalForwarder};

/// Most that a number of processors may say, in thousandths of one: more than any machine has.
const CPU_MILLICORES_MAX: f64 = 1e6;

/// Most processes that may be asked for: more than Linux numbers.
const PROCESSES_MAX: u64 = 1 << 22;

/// Which network a child is in.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum NetworkMode {
    Private,
    Shared,
    Host,
}

/// What becomes of a fork when files were changed in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ChangedFiles {
    Refuse,
    Allow,
}

impl From<NetworkMode> for Network {
    fn from(net: NetworkMode) -> Self {
        match net {
            NetworkMode::Private => Self::Private,
            NetworkMode::Shared => Self::Shared,
            NetworkMode::Host => Self::Host,
        }
    }
}

impl From<NetworkMode> for farfork_bench::ChildNetwork {
    fn from(net: NetworkMode) -> Self {
        match net {
            NetworkMode::Private => Self::Private,
            NetworkMode::Shared => Self::Shared,
            NetworkMode::Host => Self::Host,
        }
    }
}

/// Start children of a seed, here or on other nodes.
///
/// A single child is attached to this terminal: its standard streams and signals are this command's own, and so is
/// its exit status. Several children are waited for, and what they write to their standard output is printed in
/// order; Ctrl-C and the like end them, by SIGTERM and the second time by SIGKILL. With --detach the ids of the
/// children are printed and nothing is waited for. Children whose output is printed, and read by nobody any more,
/// are told so: one gets SIGPIPE, and SIGTERM if it writes on, several get SIGTERM. Children that are waited for end
/// with this command, whatever ends it, SIGKILL too: by SIGTERM, and ten seconds later by SIGKILL. Those of --detach
/// live on.
///
/// A child finds its payload in the file /run/farfork/payload, which does not exist in its parent, and open as file
/// descriptor 1000. Its environment and arguments are those of its parent, and cannot be changed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork fork $SEED --to n2
  farfork fork $SEED --to n2,n3 -n 8 --detach --json
  farfork fork $SEED --to any --payloads tasks.jsonl > results.txt
  farfork fork $SEED --to n2 --strategy eager --profile
  farfork fork $SEED -n 8 --cpus 0.5 --memory 512MiB --timeout 1m
  farfork fork $SEED --to n2 --detach --publish 8080:80
  farfork fork $SEED --untrusted --memory 512MiB --timeout 1m
  farfork fork $SEED --untrusted --egress 10.1.0.0/16:443
  echo 42 | farfork fork $SEED --payload - --shared /data --timeout 30s

Exit status: that of an attached child, 128 + the signal that killed it (141: nobody reads its output); of several children, or with --detach, 0 when \
all is well with all of them and 1 when not; 1 when a child cannot be started, 2 wrong usage.")]
pub(crate) struct Fork {
    /// Id or name of the seed.
    seed: String,
    /// Nodes that the children are spread over in turn, or `any`: those with the fewest children first
    /// [default: this node].
    #[arg(long, value_name = "NODE,…|any", value_delimiter = ',')]
    to: Vec<String>,
    /// How many children [default: 1, or as many as --payloads has lines].
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// A file whose content is each child's payload, of 16 MiB at most; `-` for standard input.
    #[arg(long, value_name = "FILE|-", conflicts_with = "payloads")]
    payload: Option<PathBuf>,
    /// A file with one payload a line, one for each child, of 16 MiB each at most; `-` for standard input.
    #[arg(long, value_name = "FILE.jsonl|-")]
    payloads: Option<PathBuf>,
    /// Show the child the node's path A as B. Can be repeated.
    #[arg(long, value_name = "A:B", value_parser = parse_bind)]
    bind: Vec<Bind>,
    /// Share a path of the node with the child, instead of what the child writes staying its own. Can be repeated;
    /// `/` shares the whole root.
    #[arg(long, value_name = "PATH")]
    shared: Vec<PathBuf>,
    /// Stop each child before its first step, until `farfork unpause`.
    #[arg(long, requires = "detach")]
    paused: bool,
    /// Print the ids of the children and leave them to themselves.
    #[arg(long)]
    detach: bool,
    /// How the children's memory comes: `cow`, each page when it is touched; `prefetch`, with those likely to be touched
    /// soon, and those that earlier children touched; `eager`, all of it before the child runs. With any of them, as in
    /// `cow,cache`: `cache`, the node keeps pages for further children of the seed; `first`, what earlier children touched
    /// does not count, nor what this one touches, for measurements [default: prefetch].
    #[arg(long, value_name = "NAME[,cache][,first]", value_parser = parse_strategy)]
    strategy: Option<PagingStrategy>,
    /// What a child may use of processors, with all that it starts: 0.5 is half of one [default: all].
    #[arg(long, value_name = "NUMBER", value_parser = parse_millicores)]
    cpus: Option<u64>,
    /// What a child may use of memory, with all that it starts and what it writes to files of its own; one that needs more is
    /// killed, for example 512MiB or 2GiB [default: all].
    #[arg(long, value_name = "SIZE", value_parser = parse_nonzero_size)]
    memory: Option<u64>,
    /// How many processes and threads a child may have: those beyond are refused with EAGAIN [default: as many as the node;
    /// with --untrusted, 1024].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=PROCESSES_MAX))]
    processes: Option<u64>,
    /// Kill a child that has run so long, for example 500ms, 30s or 10m [default: never].
    #[arg(long, value_name = "TIME", value_parser = duration::parse_ms)]
    timeout: Option<u64>,
    /// The child's network: `private`, its own, with nothing but a loopback interface, and no way out but --egress; `shared`, one such for all
    /// children of this fork on the same node; `host`, the node's, with its interfaces, names and ports [default: private].
    #[arg(long, value_name = "KIND")]
    net: Option<NetworkMode>,
    /// Have a TCP port of the child's node, at all of its addresses, lead to a port of its private network, at its loopback
    /// address. Ends with the child. Can be repeated.
    #[arg(long, value_name = "NODEPORT:CHILDPORT", value_parser = parse_publish)]
    publish: Vec<PublishedPort>,
    /// Let the child call others out of its private or shared network, by way of its node, and have names resolved as there: `any` but
    /// addresses of the link (169.254.0.0/16), or networks and addresses, with a port or without, like 10.1.0.0/16,192.0.2.7:443
    /// [default: nobody].
    #[arg(long, value_name = "any|NETWORK[:PORT],…", value_delimiter = ',')]
    egress: Vec<EgressDestination>,
    /// Keep the child from what could lead out of its container: no capabilities, and none to come by; no devices but the
    /// harmless ones; nothing of the kernel's that it could write; no system calls that it does not need.
    #[arg(long)]
    untrusted: bool,
    /// Have the child be users and groups that nobody else is on its node, in a user namespace of its own, with the node's files
    /// shown as theirs. Needs --untrusted. Not with --shared /.
    #[arg(long, requires = "untrusted")]
    user_namespace: bool,
    /// Let the child write no files, but in /dev/shm, and its standard streams. A file that its parent has open for
    /// writing refuses the fork.
    #[arg(long)]
    read_only: bool,
    /// What becomes of the fork where a file that the parent reads, or has mapped, was changed in place since the prepare: `refuse` it, by the
    /// file's name; or `allow` it, so that children find the file as it is now [default: refuse].
    #[arg(long, value_name = "POLICY", default_value = "refuse", hide_default_value = true)]
    changed_files: ChangedFiles,
    /// Say where the time went, phase by phase, and what the children's memory cost until their ends; with --detach,
    /// so far.
    #[arg(long)]
    profile: bool,
}

impl Fork {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let payload_is_stdin =
            [&self.payload, &self.payloads].into_iter().flatten().any(|path| path.as_os_str() == "-");
        let (seed, detach, with_profile) = (self.seed.clone(), self.detach, self.profile);
        let request = self.request(global.json)?;
        let is_attached = request.options.as_ref().is_some_and(|options| options.attached);
        let mut client = global.connection.open().await?;
        let mut signals = (!detach).then(SignalForwarder::start).transpose()?;
        let starting = outcomes::fork_and_collect(&mut client, request);
        let (ForkedChildren { outcomes, phases, lifetime: attendance }, kept) = match &mut signals {
            Some(signals) => signals.hold_during(&seed, starting).await?,
            None => (starting.await?, Vec::new()),
        };
        let children: Vec<String> = outcomes.iter().filter_map(ChildOutcome::child_id).collect();
        if let Some(signals) = signals {
            signals.forward(&client, &children, kept, is_attached);
        }

        let (status, mut document) = match &outcomes[..] {
            _ if detach => report_detached(&seed, &outcomes, global.json),
            [ChildOutcome::Started(child)] if is_attached => {
                (attached::attach_child(&mut client, child, !payload_is_stdin).await?, Value::Null)
            }
            [ChildOutcome::Failed { failure, .. }] => return Err(failure.clone().into()),
            _ => wait_and_print(&mut client, &seed, (&outcomes, &children), global.json).await?,
        };
        if with_profile {
            let profile = Profile::collect(&client, &outcomes, phases).await;
            if global.json {
                profile.add_to(&mut document);
            } else {
                profile.print();
            }
        }
        if global.json {
            output::print_json(&document);
        }
        drop(attendance);
        Ok(status)
    }

    fn request(self, json: bool) -> Result<ForkRequest, Failure> {
        let payloads = self.read_payloads()?;
        let count = self.count(payloads.len())?;
        let any_node = self.to == ["any"];
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let options = ChildOptions {
            binds: self.bind,
            shared: self.shared.into_iter().map(text).collect(),
            paused: self.paused,
            attached: count == 1 && !self.detach && !json,
            timeout_ms: self.timeout.unwrap_or(0),
            strategy: self.strategy.map(|strategy| strategy.to_string()).unwrap_or_default(),
            memory_bytes_max: self.memory.unwrap_or(0),
            cpu_millicores_max: self.cpus.unwrap_or(0),
            processes_max: self.processes.unwrap_or(0),
            network: self.net.map_or(Network::Private, Network::from).into(),
            publish: self.publish,
            egress: self.egress.iter().map(EgressDestination::to_string).collect(),
            untrusted: self.untrusted,
            user_namespace: self.user_namespace,
            read_only: self.read_only,
            allow_changed_files: self.changed_files == ChangedFiles::Allow,
        };
        let nodes = if any_node { Vec::new() } else { self.to };
        Ok(ForkRequest {
            seed: self.seed,
            nodes,
            any_node,
            count,
            payloads,
            options: Some(options),
            profile: self.profile,
            attended: !self.detach,
        })
    }

    fn read_payloads(&self) -> Result<Vec<Vec<u8>>, Failure> {
        match (&self.payload, &self.payloads) {
            (Some(path), _) => Ok(vec![payload::read(path)?]),
            (None, Some(path)) => payload::read_lines(path),
            (None, None) => Ok(Vec::new()),
        }
    }

    fn count(&self, payloads: usize) -> Result<u32, Failure> {
        let Some(path) = &self.payloads else {
            return Ok(self.count.unwrap_or(1));
        };
        match self.count {
            Some(count) if count as usize != payloads => {
                let cause = format!("it has {payloads} lines, and -n says {count}");
                let file = format!("payload file {}", path.display());
                Err(Failure::new(Code::InvalidArgument, file, cause)
                    .with_next_step("leave -n away: each line is one child"))
            }
            _ => Ok(u32::try_from(payloads).unwrap_or(u32::MAX)),
        }
    }
}

/// Children that nobody waits for: what a script reads of them, or their ids for people at once.
fn report_detached(seed: &str, outcomes: &[ChildOutcome], json: bool) -> (ExitCode, Value) {
    if !json {
        outcomes::print_outcomes(outcomes);
    }
    let all_run = outcomes.iter().all(|outcome| matches!(outcome, ChildOutcome::Started(_)));
    (if all_run { ExitCode::SUCCESS } else { ExitCode::FAILURE }, outcomes::outcomes_json(seed, outcomes))
}

/// Waits for children that share this terminal, and tells their results in order; gives what a script reads of them.
async fn wait_and_print(
    client: &mut farfork_node::client::Client,
    seed: &str,
    (outcomes, children): (&[ChildOutcome], &[String]),
    json: bool,
) -> anyhow::Result<(ExitCode, Value)> {
    if !json {
        outcomes.iter().filter_map(ChildOutcome::failure).for_each(output::print_failure);
    }
    let waited = wait::wait_for_all(client, children, true, json).await;
    if waited.as_ref().is_err_and(output::is_broken_pipe) {
        signals::send_signal(client, children, SIGTERM).await;
    }
    let mut ends = waited?.into_iter();
    let all_run = children.len() == outcomes.len();
    let all: Vec<Value> = outcomes
        .iter()
        .map(|outcome| match outcome {
            ChildOutcome::Started(_) => serde_json::to_value(ends.next()),
            ChildOutcome::Failed { .. } => serde_json::to_value(outcome.to_view()),
        })
        .collect::<Result<_, _>>()?;
    let all_well = all.iter().all(|end| end["exit_code"] == 0);
    let status = if all_run && all_well { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    Ok((status, serde_json::json!({ "seed": seed, "children": all })))
}

fn parse_strategy(text: &str) -> Result<PagingStrategy, PagingStrategyError> {
    text.parse()
}

/// Thousandths of a processor.
fn parse_millicores(text: &str) -> Result<u64, String> {
    let millicores = text.parse().ok().map(|cpus: f64| (cpus * 1000.0).round());
    match millicores {
        Some(millicores) if (1.0..=CPU_MILLICORES_MAX).contains(&millicores) => Ok(millicores as u64),
        _ => Err("write it like 0.5 or 2".to_owned()),
    }
}

fn parse_bind(text: &str) -> Result<Bind, String> {
    match text.split_once(':') {
        Some((from, to)) if from.starts_with('/') && to.starts_with('/') => {
            Ok(Bind { from: from.to_owned(), to: to.to_owned() })
        }
        _ => Err("write it like /path/on/the/node:/path/in/the/child".to_owned()),
    }
}

fn parse_publish(text: &str) -> Result<PublishedPort, String> {
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
    match text.split_once(':').map(|(node, child)| (port(node), port(child))) {
        Some((Some(node), Some(child))) => Ok(PublishedPort { node: node.into(), child: child.into() }),
        _ => Err("write it like 8080:80, the node's port first".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{PublishedPort, parse_bind, parse_millicores, parse_publish};

    #[test]
    fn ports_are_published_by_number() {
        assert_eq!(parse_publish("8080:80"), Ok(PublishedPort { node: 8080, child: 80 }));
        for wrong in ["8080", "0:80", "8080:0", "65536:80", "a:b", "1:2:3"] {
            assert!(parse_publish(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn processors_may_be_fractions() {
        assert_eq!((parse_millicores("0.5"), parse_millicores("2")), (Ok(500), Ok(2000)));
        for wrong in ["0", "-1", "NaN", "inf", "many", "1e9"] {
            assert!(parse_millicores(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_bind_has_two_absolute_paths() {
        let bind = parse_bind("/data:/mnt/data").unwrap();
        assert_eq!((bind.from.as_str(), bind.to.as_str()), ("/data", "/mnt/data"));
        for wrong in ["/data", "data:/x", "/data:x", ":"] {
            assert!(parse_bind(wrong).is_err(), "{wrong}");
        }
    }
}
