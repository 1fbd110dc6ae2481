//! `farfork fork`: starts children of a seed. This file has the arguments and starts the children. `attached` serves a
//! single attached child.

mod attached;
mod option_values;
mod outcomes;
mod profile;
mod signals;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum, ValueHint};
use farfork_api::failure::Failure;
use farfork_api::limits::FORK_COUNT_MAX;
use farfork_api::v1::{Bind, ChildOptions, ForkRequest, Network, PublishedPort};
use farfork_fork::pager::PagingStrategy;
use farfork_node::EgressDestination;
use farfork_terminal::command_failure::report_error;
use serde_json::Value;
use tonic::Code;

use super::wait::{self, WaitPrinting};
use crate::process_names::explain_missing_seed;
use crate::size::parse_nonzero_size;
use crate::{GlobalArgs, duration, output, payload};
use option_values::{parse_bind, parse_millicores, parse_owner_timeout, parse_publish, parse_strategy, trim_spaces};
use outcomes::{ChildOutcome, ForkedChildren, PayloadLines};
use profile::Profile;
use signals::{SIGTERM, SignalForwarder, StartsEnd};

/// Upper limit of --processes: Linux has no larger process ids.
const PROCESSES_MAX: u64 = 1 << 22;

/// The exit status of wrong usage, as clap's.
const EXIT_USAGE: u8 = 2;

/// Network of a child.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum NetworkMode {
    Private,
    Shared,
    Host,
}

/// The policy for files that were changed in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ChangedFiles {
    /// Refuse the fork, and name the file.
    Refuse,
    /// Start the children, which see the current content.
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

/// Start children of a seed, on this node or on others.
///
/// A single child is attached to this terminal. It uses this command's standard streams and receives its signals. If
/// SIGINT (Ctrl-C), SIGTERM, SIGHUP or SIGQUIT is repeated within five seconds, the child gets SIGKILL. Equal signals
/// within 0.2 seconds count as one. The command exits with the child's exit status. If the child returned a result after
/// a checkpoint, the command prints it at the child's end.
///
/// For several children, the command waits until all have ended. It prints their results in order (see `farfork wait`).
/// With --payloads, it names the line of each failed child on standard error. `farfork logs` prints what the children
/// write to standard error.
///
/// If the command receives SIGINT (Ctrl-C), SIGTERM, SIGHUP or SIGQUIT, it starts no further children, and sends SIGTERM
/// to the started ones. It prints how many were never started; with --json, the key is `never_started`. If it receives a
/// second one of these signals, it sends SIGKILL. If the starts have not ended ten seconds later, or after a third signal,
/// it exits without the number.
///
/// With --detach, the command prints the ids of the children and exits. The children keep running. After one of these
/// signals, the command starts no further children, and the started ones keep running.
///
/// Without --detach, the children end with this command, even if SIGKILL ends it. They get SIGTERM, and SIGKILL ten
/// seconds later. If the reader of the command's output closes the pipe, a single child gets SIGPIPE, and SIGTERM if
/// it continues to write. Several children get SIGTERM.
///
/// A child has the arguments and the environment of its parent; they cannot be changed. --payload and --payloads pass
/// data to children. A child finds its payload in the file /run/farfork/payload. The file is also open as descriptor
/// 1000, unless the parent uses that number. It does not exist in the parent, nor in a child without a payload.
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

Exit status: the status of a single attached child, or 128 plus the number of the signal that killed it. \
Several children: 0 if all exited with 0, else 1; 128 plus the number of the signal that stopped their starts. \
With --detach: 0 if all were started, else 1; 128 plus the number of the signal that stopped the starts. \
Also 1 if a child cannot be started, 2 on wrong usage, and 141 if the reader of the output closed the pipe. \
A single child that ignores SIGPIPE is then ended by SIGTERM: 143.")]
pub(crate) struct Fork {
    /// Id or name of the seed.
    seed: String,
    /// Nodes for the children, in turn, or `any` for the nodes with the fewest children [default: this node].
    #[arg(long, value_name = "NODE,…|any", value_delimiter = ',', value_parser = trim_spaces)]
    to: Vec<String>,
    /// Number of children, up to 16384 [default: 1, or the number of lines of --payloads].
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(FORK_COUNT_MAX)))]
    count: Option<u32>,
    /// File with the payload of all children, up to 16 MiB; `-` for standard input. An empty file is an empty payload.
    #[arg(long, value_name = "FILE|-", conflicts_with = "payloads")]
    payload: Option<PathBuf>,
    /// File with one payload per line and one line per child; `-` for standard input.
    ///
    /// A line has up to 16 MiB, all lines together up to 63 MiB.
    #[arg(long, value_name = "FILE.jsonl|-")]
    payloads: Option<PathBuf>,
    /// Bind mount path A of the node at path B of the child. Can be repeated.
    #[arg(long, value_name = "A:B", value_parser = parse_bind)]
    bind: Vec<Bind>,
    /// Share a path of the node with the child, so that the child's writes change the node's files. Can be repeated.
    ///
    /// `/` shares the whole root. Writes to paths that are not shared stay private to the child.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    shared: Vec<String>,
    /// Stop each child before its first instruction, until `farfork unpause`. Needs --detach.
    #[arg(long, requires = "detach")]
    paused: bool,
    /// Print the ids of the children and exit. The children keep running.
    #[arg(long)]
    detach: bool,
    /// Paging strategy: `cow`, `prefetch` or `eager`, optionally with `,cache` and `,first` [default: prefetch].
    ///
    /// `cow` fetches a page when the child touches it. `prefetch` also fetches pages that the child may touch soon, and
    /// pages that earlier children touched. `eager` fetches all memory before the child runs.
    ///
    /// `cache` keeps the pages on the node, for further children of the seed. `first` is for measurements. It ignores
    /// the pages that earlier children touched, and does not record the pages that this child touches.
    #[arg(long, value_name = "NAME[,cache][,first]", value_parser = parse_strategy)]
    strategy: Option<PagingStrategy>,
    /// Time for which the seed's node may be unreachable before missing pages raise SIGBUS, such as 5s or 10m [default: 60s].
    ///
    /// At least one second. A child that touches a missing page waits for it meanwhile, so that a link can recover. The
    /// child does not wait if the node answers that it no longer has the seed, has left the cluster, or was revoked.
    /// Children with another time than the default are not forked from zygotes.
    #[arg(long, value_name = "TIME", value_parser = parse_owner_timeout)]
    owner_timeout: Option<u64>,
    /// CPU limit of a child and its processes, from 0.01 to 1000 CPUs; 0.5 is half a CPU [default: unlimited].
    #[arg(long, value_name = "NUMBER", value_parser = parse_millicores)]
    cpus: Option<u64>,
    /// Memory limit of a child and its processes, such as 512MiB or 2GiB; at least 1MiB [default: unlimited].
    ///
    /// Files that the child writes to its private layer count. A child that exceeds the limit is killed.
    #[arg(long, value_name = "SIZE", value_parser = parse_nonzero_size)]
    memory: Option<u64>,
    /// Maximum number of processes and threads of a child [default: unlimited; 1024 with --untrusted].
    ///
    /// At the limit, fork(2) and clone(2) fail with EAGAIN.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=PROCESSES_MAX))]
    processes: Option<u64>,
    /// Kill a child that runs longer than this time, such as 500ms, 30s or 10m [default: never].
    #[arg(long, value_name = "TIME", value_parser = duration::parse_ms)]
    timeout: Option<u64>,
    /// Network of the children: `private`, `shared` or `host` [default: private].
    ///
    /// `private` is a network for each child, with only a loopback interface. `shared` is such a network for all
    /// children of this fork on the same node. `host` is the network of the node. Only --egress permits connections
    /// from a private or shared network to other hosts.
    #[arg(long, value_name = "KIND")]
    net: Option<NetworkMode>,
    /// Forward a TCP port of the child's node to a port of the child's private network. Can be repeated.
    ///
    /// The node listens at all its IPv4 addresses, and connects to 127.0.0.1 in the child's network. Forwarding ends
    /// with the child. Not with --net shared or host.
    #[arg(long, value_name = "NODEPORT:CHILDPORT", value_parser = parse_publish)]
    publish: Vec<PublishedPort>,
    /// Permit connections from a private or shared network to other hosts [default: none].
    ///
    /// `any` permits all IPv4 addresses that the node can reach, except link-local ones (169.254.0.0/16). A list
    /// permits networks and addresses, with or without a port, such as 10.1.0.0/16,192.0.2.7:443. The node makes the
    /// connections. Host names resolve as on the node. Not with --net host.
    #[arg(long, value_name = "any|NETWORK[:PORT],…", value_delimiter = ',')]
    egress: Vec<EgressDestination>,
    /// Deny the child everything that could lead out of its container.
    ///
    /// The child has no capabilities and cannot gain any. It has only harmless devices, such as /dev/null. It cannot
    /// change kernel settings. System calls that programs do not need fail. Not with --net host.
    #[arg(long)]
    untrusted: bool,
    /// Run the child in its own user namespace, with user and group ids that are unused on the node.
    ///
    /// In the child, the node's files still have their usual owners. Needs --untrusted. Not with --shared /.
    #[arg(long, requires = "untrusted")]
    user_namespace: bool,
    /// Directory of the child's node that is its root, instead of the node's root.
    ///
    /// The kernel's file systems are mounted in it, at /proc, /sys and /dev, and the child's own directory at
    /// /run/farfork. The child's writes to the directory are removed with it. If it lacks files that the parent has open
    /// or mapped, the seed's node provides them. The default for a parent of `farfork run --root` is the path of the
    /// parent's root.
    ///
    /// A directory on a volume or on a read-only mount must have the four mount points. The child's writes change the
    /// volume.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, value_parser = NonEmptyStringValueParser::new())]
    root: Option<String>,
    /// Make all files read-only, except in /dev/shm and /run/farfork. The standard streams stay writable.
    ///
    /// The fork is refused if the parent has a file open for writing.
    #[arg(long)]
    read_only: bool,
    /// Policy for files of the parent that were changed in place after prepare [default: refuse].
    #[arg(long, value_name = "POLICY", default_value = "refuse", hide_default_value = true)]
    changed_files: ChangedFiles,
    /// Print the time that each phase took, and the memory statistics of the children.
    ///
    /// The statistics cover the whole run of the children; with --detach, the time until this command exits.
    #[arg(long)]
    profile: bool,
}

impl Fork {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let payload_is_stdin =
            [&self.payload, &self.payloads].into_iter().flatten().any(|path| path.as_os_str() == "-");
        let (seed, detach, with_profile) = (self.seed.clone(), self.detach, self.profile);
        let lines = PayloadLines { file: self.payloads.as_deref().map(payload::describe) };
        let payloads = self.read_payloads()?;
        let count = match self.count(payloads.len()).and_then(|count| self.require_own_ports(count)) {
            Ok(count) => count,
            Err(failure) => {
                report_error(&failure.into(), global.json);
                return Ok(ExitCode::from(EXIT_USAGE));
            }
        };
        let request = self.request(count, payloads, global.json)?;
        let (batch, is_attached) = (request.batch, request.options.as_ref().is_some_and(|options| options.attached));
        let mut client = global.connection.open().await?;
        let mut signals = SignalForwarder::start()?;
        let mut forking = client.clone();
        let starting = async {
            let forked = outcomes::fork_and_collect(&mut forking, request).await;
            forked.map_err(|failure| explain_missing_seed(&seed, global.connection.run_dir(), failure))
        };
        let (forked, kept) = match signals.hold_during(&client, batch, starting).await? {
            StartsEnd::Finished(forked, kept) => (forked, kept),
            StartsEnd::Interrupted(signal) => {
                report_error(&interrupted_starts(&seed, detach).into(), global.json);
                return Ok(signal_exit_code(signal));
            }
        };
        let ForkedChildren { outcomes, phases, lifetime: attendance } = forked;
        let children: Vec<String> = outcomes.iter().filter_map(ChildOutcome::child_id).collect();
        let interrupted_by = signals::first_terminating(&kept);
        if !detach {
            signals.forward(&client, &children, kept, is_attached);
        }

        let (mut status, mut document) = match &outcomes[..] {
            _ if detach => report_detached(&seed, &outcomes, &lines, global.json),
            [ChildOutcome::Started(child)] if is_attached => {
                (attached::attach_child(&mut client, child, !payload_is_stdin).await?, Value::Null)
            }
            [outcome @ ChildOutcome::Failed { failure, .. }] if !outcome.is_never_started() => {
                return Err(failure.clone().into());
            }
            _ => wait_and_print(&mut client, &seed, &outcomes, &lines, global.json).await?,
        };
        if let Some(number) = interrupted_by.filter(|_| outcomes.iter().any(ChildOutcome::is_never_started)) {
            status = signal_exit_code(number);
        }
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

    fn request(self, count: u32, payloads: Vec<Vec<u8>>, json: bool) -> anyhow::Result<ForkRequest> {
        let any_node = self.to == ["any"];
        let options = ChildOptions {
            binds: self.bind,
            shared: self.shared,
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
            channel: false,
            root: self.root.unwrap_or_default(),
            owner_timeout_ms: self.owner_timeout.unwrap_or(0),
        };
        let nodes = if any_node { Vec::new() } else { self.to };
        // A single attached child gets the signals itself, as soon as it is started.
        let batch = match options.attached {
            true => 0,
            false => getrandom::u64().context("cannot generate a random number")? | 1,
        };
        Ok(ForkRequest {
            seed: self.seed,
            nodes,
            any_node,
            count,
            payloads,
            options: Some(options),
            profile: self.profile,
            attended: !self.detach,
            batch,
        })
    }

    fn read_payloads(&self) -> Result<Vec<Vec<u8>>, Failure> {
        match (&self.payload, &self.payloads) {
            (Some(path), _) => Ok(vec![payload::read(path)?]),
            (None, Some(path)) => payload::read_lines(path),
            (None, None) => Ok(Vec::new()),
        }
    }

    /// Returns the number of children.
    ///
    /// # Errors
    /// Wrong usage: `--count` contradicts the number of payloads.
    fn count(&self, payloads: usize) -> Result<u32, Failure> {
        let Some(path) = &self.payloads else {
            return Ok(self.count.unwrap_or(1));
        };
        match self.count {
            Some(count) if count as usize != payloads => {
                let cause = format!("it has {payloads} lines, and -n says {count}");
                let file = format!("payload file {}", path.display());
                Err(Failure::new(Code::InvalidArgument, file, cause).with_next_step("drop -n: each line is one child"))
            }
            _ => Ok(u32::try_from(payloads).unwrap_or(u32::MAX)),
        }
    }

    /// Returns the number of children if each can publish its ports.
    ///
    /// # Errors
    /// Wrong usage: two children of one node would publish the same port.
    fn require_own_ports(&self, count: u32) -> Result<u32, Failure> {
        let nodes = self.to.iter().collect::<BTreeSet<_>>().len().max(1);
        match self.publish.first() {
            // Which nodes have the fewest children is not known here.
            Some(port) if self.to != ["any"] && count as usize > nodes => {
                let cause = format!("{count} children need {count} nodes to publish it");
                Err(Failure::new(Code::InvalidArgument, format!("port {} of the node", port.node), cause)
                    .with_next_step("start one child on each node, or each child with another port"))
            }
            _ => Ok(count),
        }
    }
}

/// Returns the exit status and the JSON document of a detached fork. Without `json`, prints the ids and the failures.
fn report_detached(seed: &str, outcomes: &[ChildOutcome], lines: &PayloadLines, json: bool) -> (ExitCode, Value) {
    if !json {
        outcomes::print_started(outcomes);
        outcomes::print_failures(outcomes, lines);
    }
    let never_started = print_never_started(outcomes);
    let all_run = outcomes.iter().all(|outcome| matches!(outcome, ChildOutcome::Started(_)));
    let mut document = outcomes::outcomes_json(seed, outcomes, lines);
    document["never_started"] = never_started.into();
    (if all_run { ExitCode::SUCCESS } else { ExitCode::FAILURE }, document)
}

/// The failure of a command that was interrupted again while its children started.
fn interrupted_starts(seed: &str, is_detached: bool) -> Failure {
    let cause = "interrupted while its children started; the number of started children is not known";
    let next_step = match is_detached {
        true => "the children that were started keep running: list them with `farfork ps`",
        false => "the children that were started are ended: see `farfork ps`",
    };
    Failure::new(Code::Cancelled, format!("seed {seed}"), cause).with_next_step(next_step)
}

/// The exit status of a command that a signal has stopped, as of a shell.
fn signal_exit_code(number: u32) -> ExitCode {
    ExitCode::from(u8::try_from(128 + number).unwrap_or(u8::MAX))
}

/// Prints how many children were never started, if there are any. Returns the number.
fn print_never_started(outcomes: &[ChildOutcome]) -> usize {
    let never_started = outcomes.iter().filter(|outcome| outcome.is_never_started()).count();
    if never_started > 0 {
        output::print_note(format_args!(
            "farfork: stopped by a signal: {never_started} of {} children were never started",
            outcomes.len()
        ));
    }
    never_started
}

/// Waits for the started children. Returns the exit status and the JSON document. Without `json`, prints the failures
/// and, in order, the results.
async fn wait_and_print(
    client: &mut farfork_api::client::Client,
    seed: &str,
    outcomes: &[ChildOutcome],
    lines: &PayloadLines,
    json: bool,
) -> anyhow::Result<(ExitCode, Value)> {
    if !json {
        outcomes::print_failures(outcomes, lines);
    }
    let never_started = print_never_started(outcomes);
    let children: Vec<String> = outcomes.iter().filter_map(ChildOutcome::child_id).collect();
    let started = outcomes.iter().enumerate().filter(|(_, outcome)| matches!(outcome, ChildOutcome::Started(_)));
    let labels: Vec<String> = started.filter_map(|(index, _)| lines.name_child(index)).collect();
    let printing = WaitPrinting { results: true, quiet: json, labels: &labels };
    let waited = wait::wait_for_all(client, &children, &printing).await;
    if waited.as_ref().is_err_and(output::is_broken_pipe) {
        signals::send_signal(client, &children, SIGTERM).await;
    }
    let mut ends = waited?.into_iter();
    let all_run = children.len() == outcomes.len();
    let mut all: Vec<Value> = outcomes
        .iter()
        .map(|outcome| match outcome {
            ChildOutcome::Started(_) => serde_json::to_value(ends.next()),
            ChildOutcome::Failed { .. } => serde_json::to_value(outcome.to_view()),
        })
        .collect::<Result<_, _>>()?;
    let all_well = all.iter().all(|end| end["exit_code"] == 0);
    lines.add_to(&mut all);
    let status = if all_run && all_well { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let seed = outcomes::seed_id(seed, outcomes);
    Ok((status, serde_json::json!({ "seed": seed, "children": all, "never_started": never_started })))
}
