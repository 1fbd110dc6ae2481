//! Fork: chooses a node for each child, sends requests to these nodes, and relays the outcome of each child as it
//! arrives.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_api::client::request_with_timeout;
use farfork_api::failure::{Failure, is_connection_refused};
use farfork_api::limits::{FORK_COUNT_MAX, PAYLOAD_BYTES_MAX, QUERY_TIMEOUT, START_TIMEOUT, STREAM_MESSAGES_MAX};
use farfork_api::v1;
use farfork_api::v1::fork_outcome::Result as Outcome;
use farfork_cluster::membership::{Member, MemberState, MemberView};
use farfork_cluster::placement::{self, PlacementCandidate};
use farfork_wire::{NodeName, SeedId};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use tracing::Instrument as _;

use super::caller_disconnect::{NodeShare, end_on_disconnect};
use super::route::{PeerStream, forwarded_failure};
use super::stream::{ResponseReceiver, ResponseSender, send};
use super::{children, seeds, start};
use crate::engine::random_id;
use crate::metrics::MeasuredOperation;
use crate::network::{EgressPolicy, NetworkMode};
use crate::node::Node;
use crate::pending_starts::PendingStart;
use crate::phases::{self, PhaseRecording};

/// Starts the requested children, and reports exactly one outcome for each.
///
/// ```text
///  caller ── Fork ──▶ this node ── DescribeSeed ──▶ owner of the seed
///                        │  ├───── StartChildren ──▶ node B ── outcome, outcome, …
///                        │  └───── StartChildren ──▶ node C ── outcome, …
///    ◀── outcome, …, one for each child, whatever happens ──┘
/// ```
///
/// `is_exit_watched`: the caller waits for each child with `Peer.Tend`. If no Tend stream names a child soon, the
/// child's node kills it, because this node may have died.
pub(crate) async fn fork(
    node: &Arc<Node>,
    request: v1::ForkRequest,
    is_exit_watched: bool,
) -> Result<ReceiverStream<Result<v1::ForkOutcome, Status>>, Failure> {
    let answer = start_fork(node, request, is_exit_watched).await;
    answer.inspect_err(|failure| node.metrics.record_failure(MeasuredOperation::Fork, failure))
}

async fn start_fork(
    node: &Arc<Node>,
    request: v1::ForkRequest,
    is_exit_watched: bool,
) -> Result<ReceiverStream<Result<v1::ForkOutcome, Status>>, Failure> {
    let arrived = Instant::now();
    check_request(&request)?;
    let recording = PhaseRecording::start(request.profile, &node.name, "fork");
    let placing = tracing::debug_span!(target: phases::TARGET, parent: recording.span(), "fork.place");
    let ChosenNodes { of_children: nodes, alternatives } = choose_nodes(node, &request).instrument(placing).await?;
    let locating = tracing::debug_span!(target: phases::TARGET, parent: recording.span(), "fork.locate");
    let different: BTreeSet<NodeName> = nodes.iter().cloned().collect();
    let different: Vec<NodeName> = different.into_iter().collect();
    let seed = seeds::describe_seed(node, &request.seed, &different).instrument(locating).await?;
    // Hold the pending start until each child is listed or has failed: while the request travels, the child's node does
    // not know of the start.
    let start = seed.seed.parse().ok().map(|id: SeedId| node.pending_starts.begin(id));
    let batch = match (request.attended, request.batch) {
        (false, _) => 0,
        (true, 0) => random_batch_id(node)?,
        (true, chosen) => chosen,
    };
    let (sink, outcomes) = mpsc::channel(STREAM_MESSAGES_MAX);
    let mut share_tasks = JoinSet::new();
    for (target, children) in split_by_node(&request, &nodes) {
        let share = v1::StartChildrenRequest {
            seed: Some(seed.clone()),
            children,
            options: request.options.clone(),
            shared_payload: request.payloads.first().filter(|_| request.payloads.len() == 1).cloned(),
            profile: request.profile,
            batch,
            exit_watched: is_exit_watched,
            stop_batch: if request.attended { 0 } else { request.batch },
        };
        let span = tracing::debug_span!(target: phases::TARGET, parent: recording.span(), "fork.ask");
        let targets = ShareTargets::new(target, &alternatives);
        share_tasks.spawn(start_share(node.clone(), targets, share, arrived, sink.clone()).instrument(span));
    }
    tokio::spawn(finish_fork(PendingFork {
        node: node.clone(),
        pending_start: start,
        batch,
        shares: share_tasks,
        received_at: arrived,
        recording,
        sink,
    }));
    Ok(ReceiverStream::new(outcomes))
}

/// Draws a random, nonzero number for a batch.
fn random_batch_id(node: &Node) -> Result<u64, Failure> {
    let number = random_id().map(|number| number | 1);
    number.map_err(|error| {
        Failure::new(
            Code::Internal,
            format!("node `{}`", node.name),
            format!("cannot generate a random number: {error}"),
        )
    })
}

/// A fork whose children are being started.
struct PendingFork {
    node: Arc<Node>,
    pending_start: Option<PendingStart>,
    /// Number of the batch; 0 if the fork is not attended.
    batch: u64,
    shares: JoinSet<NodeShare>,
    received_at: Instant,
    recording: PhaseRecording,
    sink: ResponseSender<v1::ForkOutcome>,
}

/// Waits for all outcomes, then reports the phases of the whole request. If the fork is attended, ends its children
/// when the caller disconnects.
async fn finish_fork(fork: PendingFork) {
    let PendingFork {
        node,
        pending_start: start,
        batch,
        shares: mut share_tasks,
        received_at: arrived,
        recording,
        sink,
    } = fork;
    let mut shares = Vec::new();
    while let Some(share) = share_tasks.join_next().await {
        shares.extend(share);
    }
    drop(start);
    node.metrics.record_answer(MeasuredOperation::Fork, arrived.elapsed());
    let phases = recording.finish();
    let is_attended = batch != 0;
    if is_attended || !phases.is_empty() {
        // The caller may have disconnected.
        let _ = send(&sink, v1::ForkOutcome { index: 0, node: node.name.to_string(), result: None, phases }).await;
    }
    if is_attended {
        end_on_disconnect(&node, batch, shares, &sink).await;
    }
}

fn check_request(request: &v1::ForkRequest) -> Result<(), Failure> {
    let refuse = |cause: String| Err(Failure::new(Code::InvalidArgument, format!("seed {}", request.seed), cause));
    if !(1..=FORK_COUNT_MAX).contains(&request.count) {
        return refuse(format!("{} children at a time: 1 to {FORK_COUNT_MAX} can be started", request.count));
    }
    let payloads = request.payloads.len();
    if payloads > 1 && payloads != request.count as usize {
        return refuse(format!("{payloads} payloads for {} children", request.count));
    }
    if let Some(index) = request.payloads.iter().position(|payload| payload.len() > PAYLOAD_BYTES_MAX) {
        return refuse(format!("payload {index} is larger than {PAYLOAD_BYTES_MAX} bytes"));
    }
    Ok(())
}

/// The nodes of a fork.
struct ChosenNodes {
    /// The node of each child.
    of_children: Vec<NodeName>,
    /// The nodes that may take children of a node that does not run. Empty if the request names the nodes.
    alternatives: Vec<NodeName>,
}

/// Chooses a node for each child.
async fn choose_nodes(node: &Node, request: &v1::ForkRequest) -> Result<ChosenNodes, Failure> {
    let count = request.count as usize;
    if request.any_node {
        let owner = seeds::find_owner(node, &request.seed).await?;
        let candidates = candidates(node.peers.views(), &owner)?;
        if candidates.is_empty() {
            let cause = "no reachable node has a processor that can run it";
            let refused = Failure::new(Code::FailedPrecondition, format!("seed {}", request.seed), cause);
            return Err(refused.with_next_step("see which nodes answer with `farfork nodes`"));
        }
        let of_children = placement::place_least_loaded(&candidates, count);
        // A second share of the children on a node would get another network than the first one.
        let is_shared = request.options.as_ref().is_some_and(|options| options.network() == v1::Network::Shared);
        let alternatives = candidates.into_iter().filter(|_| !is_shared).map(|candidate| candidate.node).collect();
        return Ok(ChosenNodes { of_children, alternatives });
    }
    if request.nodes.is_empty() {
        return Ok(ChosenNodes { of_children: vec![node.name.clone(); count], alternatives: Vec::new() });
    }
    let known = |name: &String| {
        let object = format!("node `{name}`");
        let name = NodeName::new(name).map_err(|error| {
            let refuse = |cause: &dyn Display| Failure::new(Code::InvalidArgument, &object, cause);
            let is_address = name.parse::<IpAddr>().is_ok() || name.parse::<SocketAddr>().is_ok();
            let refused = if is_address { refuse(&"it is an address, not a node name") } else { refuse(&error) };
            refused.with_next_step("give the names that `farfork nodes` lists")
        })?;
        node.peers.find(&name, object).map(|view| view.member.name)
    };
    let nodes: Vec<NodeName> = request.nodes.iter().map(known).collect::<Result<_, _>>()?;
    Ok(ChosenNodes { of_children: placement::place_round_robin(&nodes, count), alternatives: Vec::new() })
}

/// Returns the nodes that accept children and whose processor can run children of the seed's owner.
///
/// # Errors
/// No node accepts children. The failure contains the reasons.
fn candidates(views: Vec<MemberView>, owner: &NodeName) -> Result<Vec<PlacementCandidate>, Failure> {
    let of_owner = views.iter().find(|view| view.member.name == *owner);
    let origin = of_owner.and_then(|view| view.member.processor.clone());
    let alive = views.into_iter().filter(|view| view.state == MemberState::Alive);
    let (ready, others): (Vec<Member>, Vec<Member>) =
        alive.map(|view| view.member).partition(|member| member.not_ready.is_none());
    if ready.is_empty() {
        let reason = |member: &Member| format!("{}: {}", member.name, member.not_ready.as_deref().unwrap_or_default());
        let reasons: Vec<String> = others.iter().map(reason).collect();
        let cause = format!("no node takes children ({})", reasons.join("; "));
        return Err(Failure::new(Code::Unavailable, "fork", cause).with_next_step("see `farfork nodes`"));
    }
    let candidate = |member: Member| PlacementCandidate {
        node: member.name,
        children: member.children,
        processor: member.processor,
    };
    Ok(placement::filter_by_processor(origin.as_ref(), ready.into_iter().map(candidate).collect()))
}

/// Groups the requested children by node.
fn split_by_node(request: &v1::ForkRequest, nodes: &[NodeName]) -> BTreeMap<NodeName, Vec<v1::ChildSpec>> {
    let mut shares: BTreeMap<NodeName, Vec<v1::ChildSpec>> = BTreeMap::new();
    for (index, node) in nodes.iter().enumerate() {
        let payload = if request.payloads.len() > 1 { request.payloads.get(index).cloned() } else { None };
        let index = u32::try_from(index).expect("FORK_COUNT_MAX fits");
        shares.entry(node.clone()).or_default().push(v1::ChildSpec { index, payload });
    }
    shares
}

/// The nodes for a share of the children.
struct ShareTargets {
    current: NodeName,
    /// Nodes that may replace the current one.
    alternatives: VecDeque<NodeName>,
}

impl ShareTargets {
    /// The alternatives begin after the first target, so that the shares of several nodes get different ones.
    fn new(first: NodeName, alternatives: &[NodeName]) -> Self {
        let mut others: VecDeque<NodeName> = alternatives.to_vec().into();
        if let Some(position) = others.iter().position(|node| *node == first) {
            others.rotate_left(position);
            others.pop_front();
        }
        Self { current: first, alternatives: others }
    }
}

/// Makes one node start its children. Reports a failure for each child that the node does not report.
async fn start_share(
    node: Arc<Node>,
    mut targets: ShareTargets,
    share: v1::StartChildrenRequest,
    arrived: Instant,
    sink: ResponseSender<v1::ForkOutcome>,
) -> NodeShare {
    let delay = arrived.elapsed();
    let mut missing: BTreeSet<u32> = share.children.iter().map(|child| child.index).collect();
    let options =
        ShareOptions { requested: share.options.clone().unwrap_or_default(), is_attended: share.batch != 0, delay };
    let relayed = match request_share(&node, &mut targets, share).await {
        Ok(source) => relay_outcomes(&node, &targets.current, source, &options, &sink, &mut missing).await,
        Err(failure) => Err(failure),
    };
    let target = targets.current;
    let (source, failure) = match relayed {
        Ok(source) => {
            (Some(source), Failure::new(Code::Internal, format!("node `{target}`"), "it did not report this child"))
        }
        Err(failure) => (None, failure),
    };
    for index in missing {
        let result = Some(Outcome::Error(failure.clone().into()));
        let _ = send(&sink, v1::ForkOutcome { index, node: target.to_string(), result, phases: Vec::new() }).await;
    }
    NodeShare { node: target, outcomes: source }
}

/// Requests the children from the current target. If its daemon does not run, nothing was started: then requests them
/// from the next target. For some seconds, a node whose daemon was killed still counts as alive.
async fn request_share(
    node: &Arc<Node>,
    targets: &mut ShareTargets,
    mut share: v1::StartChildrenRequest,
) -> Result<OutcomeStream, Failure> {
    loop {
        let ShareTargets { current, alternatives } = targets;
        let object = format!("node `{current}`");
        if *current == node.name {
            return Ok(OutcomeStream::Local(start::start_children(node, share)?));
        }
        let mut peer = node.peers.peer(current, &object)?;
        // A share may have megabytes of payloads.
        let sent = if alternatives.is_empty() { std::mem::take(&mut share) } else { share.clone() };
        match peer.start_children(request_with_timeout(QUERY_TIMEOUT, sent)).await {
            Ok(answer) => {
                return Ok(OutcomeStream::Remote(Box::new(PeerStream::new(answer, node, current, &object))));
            }
            Err(status) => match alternatives.pop_front().filter(|_| is_connection_refused(&status)) {
                Some(next) => {
                    tracing::info!(node = %current, %next, "its daemon does not run: the next node starts its children");
                    *current = next;
                }
                None => return Err(forwarded_failure(&object)(status)),
            },
        }
    }
}

/// The options of a share: the requested properties of its children, and the times in its outcomes.
struct ShareOptions {
    requested: v1::ChildOptions,
    is_attended: bool,
    /// Time from the arrival of the fork to the request for the share.
    delay: Duration,
}

/// Relays the outcomes that a node reports, and removes their indexes from `missing`.
async fn relay_outcomes(
    node: &Arc<Node>,
    target: &NodeName,
    mut source: OutcomeStream,
    options: &ShareOptions,
    sink: &ResponseSender<v1::ForkOutcome>,
    missing: &mut BTreeSet<u32>,
) -> Result<OutcomeStream, Failure> {
    let object = format!("node `{target}`");
    let silent = || {
        let cause = format!("no child has started for {} s", START_TIMEOUT.as_secs());
        Failure::new(Code::DeadlineExceeded, &object, cause).with_next_step("see the node's log")
    };
    // If the caller disconnects, the sink closes. The streams are then dropped, and the nodes undo the starts in
    // progress. A stream of attended children does not end on its own: stop when all are reported.
    while !(options.is_attended && missing.is_empty())
        && let Some(mut outcome) = tokio::select! {
            outcome = timeout(2 * START_TIMEOUT, source.next()) => outcome.map_err(|_| silent())??,
            () = sink.closed() => None,
        }
    {
        missing.remove(&outcome.index);
        if let Some(Outcome::Child(child)) = &outcome.result
            && !has_requested_isolation(child, &options.requested)
        {
            outcome.result = Some(Outcome::Error(kill_mismatched(node, &object, child).await.into()));
        }
        phases::shift_phases(&mut outcome.phases, options.delay);
        if send(sink, outcome).await.is_err() {
            missing.clear();
            break;
        }
    }
    Ok(source)
}

/// Whether a child has the requested isolation, root, network and process limit. A node of an earlier release ignores
/// fields that it does not know.
fn has_requested_isolation(child: &v1::Child, options: &v1::ChildOptions) -> bool {
    let network = |of: v1::Network| NetworkMode::from(of);
    let requested = (options.untrusted, options.user_namespace, options.read_only);
    (child.untrusted, child.user_namespace, child.read_only) == requested
        && network(child.network()) == network(options.network())
        && (options.root.is_empty() || Path::new(&options.root) == Path::new("/").join(&child.root))
        && child.publish == options.publish
        && EgressPolicy::try_from(&child.egress[..]).ok() == EgressPolicy::try_from(&options.egress[..]).ok()
        && (options.processes_max == 0 || child.processes_max == options.processes_max)
}

/// Kills a child that lacks a requested property. Returns the failure to report.
async fn kill_mismatched(node: &Node, object: &str, child: &v1::Child) -> Failure {
    let signal = rustix::process::Signal::KILL.as_raw().unsigned_abs();
    if let Err(failure) =
        children::kill(node, v1::KillRequest { child: child.id.clone(), signal, by_program: false }).await
    {
        tracing::warn!(%failure, "cannot kill a child that lacks a requested option");
    }
    let cause = "it runs an earlier release without one of --untrusted, --user-namespace, --read-only, --root, --processes, --net, --publish and --egress; its child was ended";
    Failure::new(Code::FailedPrecondition, object, cause).with_next_step("run the same release on all nodes")
}

/// The source of outcomes.
pub(super) enum OutcomeStream {
    Local(ResponseReceiver<v1::ForkOutcome>),
    Remote(Box<PeerStream<v1::ForkOutcome>>),
}

impl OutcomeStream {
    async fn next(&mut self) -> Result<Option<v1::ForkOutcome>, Failure> {
        match self {
            OutcomeStream::Local(outcomes) => {
                outcomes.recv().await.transpose().map_err(forwarded_failure("the start of children"))
            }
            OutcomeStream::Remote(outcomes) => outcomes.next().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ShareTargets, check_request, has_requested_isolation, split_by_node};
    use farfork_api::v1::{Child, ChildOptions, ForkRequest, Network};
    use farfork_wire::NodeName;

    fn request(count: u32, payloads: &[&str]) -> ForkRequest {
        let payloads = payloads.iter().map(|payload| payload.as_bytes().to_vec()).collect();
        ForkRequest { seed: "s".to_owned(), count, payloads, ..ForkRequest::default() }
    }

    #[test]
    fn a_fork_has_no_payload_one_or_one_for_each_child() {
        for (count, payloads, is_right) in
            [(3, 0, true), (3, 1, true), (3, 3, true), (3, 2, false), (0, 0, false), (1 << 20, 0, false)]
        {
            let request = request(count, &vec!["p"; payloads]);
            assert_eq!(check_request(&request).is_ok(), is_right, "{count} children, {payloads} payloads");
        }
    }

    #[test]
    fn isolation_that_an_earlier_release_lacks_is_noticed() {
        let (plain, network) = (ChildOptions::default(), Network::Private.into());
        assert!(has_requested_isolation(&Child::default(), &ChildOptions { network, ..plain.clone() }));
        assert!(!has_requested_isolation(&Child::default(), &ChildOptions { untrusted: true, ..plain.clone() }));
        let untrusted = Child { untrusted: true, ..Child::default() };
        let options = ChildOptions { untrusted: true, network, ..plain.clone() };
        assert!(has_requested_isolation(&untrusted, &options));
        assert!(!has_requested_isolation(&untrusted, &ChildOptions { user_namespace: true, ..options }));
        assert!(!has_requested_isolation(&Child::default(), &ChildOptions { processes_max: 9, ..plain.clone() }));
        let network = Network::Host.into();
        assert!(!has_requested_isolation(&Child::default(), &ChildOptions { network, ..plain }));
    }

    #[test]
    fn the_alternatives_of_a_node_are_the_others() {
        let name = |text: &str| NodeName::new(text).unwrap();
        let all = ["a", "b", "c"].map(name);
        assert_eq!(ShareTargets::new(name("b"), &all).alternatives, ["c", "a"].map(name));
        assert_eq!(ShareTargets::new(name("b"), &[]).alternatives, []);
    }

    #[test]
    fn each_child_keeps_its_payload_on_its_node() {
        let name = |text| NodeName::new(text).unwrap();
        let shares = split_by_node(&request(3, &["x", "y", "z"]), &[name("b"), name("a"), name("b")]);
        let of_b: Vec<_> = shares[&name("b")].iter().map(|spec| (spec.index, spec.payload.clone())).collect();
        assert_eq!(of_b, [(0, Some(b"x".to_vec())), (2, Some(b"z".to_vec()))]);
        assert_eq!(shares[&name("a")].len(), 1);
    }
}
