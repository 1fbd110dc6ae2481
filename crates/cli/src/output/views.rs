//! Seeds, children and nodes in JSON output. The field names are a stable interface: fields may be added, never
//! renamed.

use std::collections::BTreeMap;

use farfork_api::v1;
use farfork_api::v1::exit::How;
use serde::Serialize;

/// A seed.
#[derive(Debug, Serialize)]
pub(crate) struct SeedView {
    pub(crate) seed: String,
    pub(crate) name: String,
    pub(crate) node: String,
    pub(crate) parent_pid: u32,
    pub(crate) command: String,
    /// 0 if an older daemon sealed the seed.
    pub(crate) processes: u32,
    pub(crate) threads: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) descriptor_bytes: u64,
    pub(crate) pause_us: u64,
    pub(crate) prepare_us: u64,
    pub(crate) frozen: bool,
    pub(crate) created_unix_ms: u64,
    /// Measured by the seed's node: the clocks of two machines may differ.
    pub(crate) age_ms: u64,
    /// 0 if the seed never expires.
    pub(crate) expires_unix_ms: u64,
    /// Time to live after the last use of the seed; 0 if the seed never expires.
    pub(crate) ttl_ms: u64,
    /// Size of held files that no longer have a path.
    pub(crate) held_file_bytes: u64,
    pub(crate) labels: BTreeMap<String, String>,
    /// Some of the objects that need the seed. `needed_by_count` is the number of all.
    pub(crate) needed_by: Vec<String>,
    pub(crate) needed_by_count: u32,
    /// Where the memory of the seed is: `template`, `template_ended`, `sealing`, `sealed` or `sealing_failed`.
    pub(crate) state: &'static str,
    /// Null if sealing was not requested.
    pub(crate) seal: Option<SealView>,
    /// Whether the template has ended, so that the seed cannot be forked.
    pub(crate) template_ended: bool,
    /// The resources that children of the seed will lack or find changed.
    pub(crate) notes: Vec<String>,
}

/// The progress of a seed's sealing.
#[derive(Debug, Serialize)]
pub(crate) struct SealView {
    /// `sealing`, `sealed` or `failed`.
    pub(crate) state: &'static str,
    pub(crate) done_bytes: u64,
    pub(crate) total_bytes: u64,
    /// Why sealing failed.
    pub(crate) failure: Option<String>,
    /// Path of the image on the seed's node, once the seed is sealed.
    pub(crate) image: Option<String>,
}

impl From<v1::Seal> for SealView {
    fn from(seal: v1::Seal) -> Self {
        let state = match seal.state() {
            v1::SealState::Unspecified => "unknown",
            v1::SealState::Sealing => "sealing",
            v1::SealState::Sealed => "sealed",
            v1::SealState::Failed => "failed",
        };
        let non_empty = |text: String| Some(text).filter(|text| !text.is_empty());
        let v1::Seal { done_bytes, total_bytes, failure, image, .. } = seal;
        Self { state, done_bytes, total_bytes, failure: non_empty(failure), image: non_empty(image) }
    }
}

impl From<v1::Seed> for SeedView {
    fn from(seed: v1::Seed) -> Self {
        let seal = seed.seal.map(SealView::from);
        Self {
            state: seed_state(seal.as_ref(), seed.template_ended),
            seed: seed.id,
            name: seed.name,
            node: seed.node,
            parent_pid: seed.parent_pid,
            command: seed.command,
            processes: seed.processes,
            threads: seed.threads,
            memory_bytes: seed.memory_bytes,
            descriptor_bytes: seed.descriptor_bytes,
            pause_us: seed.pause_us,
            prepare_us: seed.prepare_us,
            frozen: seed.frozen,
            created_unix_ms: seed.created_unix_ms,
            age_ms: seed.age_ms,
            expires_unix_ms: seed.expires_unix_ms,
            ttl_ms: seed.ttl_ms,
            held_file_bytes: seed.held_file_bytes,
            labels: seed.labels.into_iter().collect(),
            needed_by: seed.needed_by,
            needed_by_count: seed.needed_by_count,
            seal,
            template_ended: seed.template_ended,
            notes: seed.notes,
        }
    }
}

/// Returns where the memory of a seed is, as a keyword.
fn seed_state(seal: Option<&SealView>, template_ended: bool) -> &'static str {
    match seal {
        _ if template_ended => "template_ended",
        None => "template",
        Some(SealView { state: "failed", .. }) => "sealing_failed",
        Some(SealView { state, .. }) => state,
    }
}

/// A child.
#[derive(Debug, Serialize)]
pub(crate) struct ChildView {
    pub(crate) child: String,
    pub(crate) node: String,
    pub(crate) seed: String,
    /// Process id on the child's host.
    pub(crate) pid: u32,
    pub(crate) state: &'static str,
    /// Exit status as a shell reports it: the child's own status, or 128 + the signal. Null while the child runs, and
    /// for a lost child.
    pub(crate) exit_code: Option<u32>,
    /// The signal that killed the child.
    pub(crate) signal: Option<u32>,
    /// The limit for which the child was killed, as a sentence.
    pub(crate) limit: Option<String>,
    /// The keyword of `limit`: `time`, `memory` or `node_memory`.
    pub(crate) limit_met: Option<&'static str>,
    /// Whether the program that forked the child, such as an executor, ended it.
    pub(crate) ended_by_executor: bool,
    pub(crate) resume_us: u64,
    pub(crate) started_unix_ms: u64,
    /// Time since the start. Measured by the child's node: the clocks of two machines may differ.
    pub(crate) age_ms: u64,
    /// 0 while the child runs.
    pub(crate) ended_unix_ms: u64,
    pub(crate) command: String,
    /// Why the child's memory is lost; null if it is not lost.
    pub(crate) memory_lost: Option<String>,
    /// Whether the child has all of its memory, and no longer needs its seed.
    pub(crate) settled: bool,
    /// Null if the child has no limit of its own. The same applies to the next two fields.
    pub(crate) memory_bytes_max: Option<u64>,
    pub(crate) cpus_max: Option<f64>,
    pub(crate) processes_max: Option<u64>,
    /// Whether the child is denied everything that could let it leave its container (`--untrusted`).
    pub(crate) untrusted: bool,
    /// Whether the child has its own user namespace.
    pub(crate) user_namespace: bool,
    /// Whether the child cannot write files (`--read-only`).
    pub(crate) read_only: bool,
    /// The child's network: `private`, `shared` or `host`.
    pub(crate) network: &'static str,
    /// Published ports of the node and of the child, in the format of `--publish`.
    pub(crate) publish: Vec<String>,
    /// Destinations outside of the child's network that the child may reach, in the format of `--egress`.
    pub(crate) egress: Vec<String>,
    /// The directory of the node that is the child's root (`--root`); null if that is the node's root.
    pub(crate) root: Option<String>,
}

impl From<v1::Child> for ChildView {
    fn from(child: v1::Child) -> Self {
        let state = match child.state() {
            v1::ChildState::Unspecified => "unknown",
            v1::ChildState::Paused => "paused",
            v1::ChildState::Running => "running",
            v1::ChildState::Exited => "exited",
            v1::ChildState::Lost => "lost",
        };
        let signal = match child.exit {
            Some(v1::Exit { how: Some(How::Signal(signal)), .. }) => Some(signal),
            _ => None,
        };
        let network = match child.network() {
            v1::Network::Unspecified | v1::Network::Private => "private",
            v1::Network::Shared => "shared",
            v1::Network::Host => "host",
        };
        Self {
            state,
            network,
            publish: child.publish.iter().map(|port| format!("{}:{}", port.node, port.child)).collect(),
            exit_code: child.exit.as_ref().and_then(exit_code),
            signal,
            ended_by_executor: child.exit.as_ref().is_some_and(|exit| exit.by_program),
            limit_met: child.exit.as_ref().and_then(|exit| limit_name(exit.limit_met())),
            limit: child.exit.map(|exit| exit.limit).filter(|limit| !limit.is_empty()),
            egress: child.egress,
            root: Some(child.root).filter(|root| !root.is_empty()),
            child: child.id,
            node: child.node,
            seed: child.seed,
            pid: child.pid,
            resume_us: child.resume_us,
            started_unix_ms: child.started_unix_ms,
            age_ms: child.age_ms,
            ended_unix_ms: child.ended_unix_ms,
            command: child.command,
            memory_lost: Some(child.memory_lost).filter(|reason| !reason.is_empty()),
            settled: child.is_settled,
            memory_bytes_max: Some(child.memory_bytes_max).filter(|bytes| *bytes > 0),
            cpus_max: Some(child.cpu_millicores_max as f64 / 1000.0).filter(|cpus| *cpus > 0.0),
            processes_max: Some(child.processes_max).filter(|most| *most > 0),
            untrusted: child.untrusted,
            user_namespace: child.user_namespace,
            read_only: child.read_only,
        }
    }
}

fn limit_name(limit: v1::Limit) -> Option<&'static str> {
    match limit {
        v1::Limit::Unspecified => None,
        v1::Limit::Time => Some("time"),
        v1::Limit::Memory => Some("memory"),
        v1::Limit::NodeMemory => Some("node_memory"),
    }
}

/// Returns the exit status that a shell would report; `None` for a lost child.
pub(crate) fn exit_code(exit: &v1::Exit) -> Option<u32> {
    match exit.how {
        Some(How::Code(code)) => Some(code),
        Some(How::Signal(signal)) => Some(128 + signal),
        Some(How::Lost(_)) | None => None,
    }
}

/// Describes in words how a child ended.
pub(crate) fn exit_text(exit: Option<&v1::Exit>) -> String {
    let limit = exit.map(|exit| exit.limit.as_str()).filter(|limit| !limit.is_empty());
    match exit.and_then(|exit| exit.how.as_ref()) {
        Some(How::Signal(_)) if let Some(limit) = limit => format!("killed: {limit}"),
        Some(How::Signal(_)) if exit.is_some_and(|exit| exit.by_program) => "ended by its executor".to_owned(),
        Some(How::Code(code)) => format!("exit {code}"),
        Some(How::Signal(signal)) => format!("killed by {}", crate::signal::name(*signal)),
        Some(How::Lost(why)) => format!("lost: {why}"),
        None => String::new(),
    }
}

/// A node.
#[derive(Debug, Serialize)]
pub(crate) struct NodeView {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) fabric_address: String,
    pub(crate) state: &'static str,
    pub(crate) silent_ms: u64,
    pub(crate) is_self: bool,
    /// Why the node accepts no children; empty if it accepts them.
    pub(crate) not_ready: String,
    /// The node's clock minus the clock of the answering node; `null` if it has not reported its clock.
    pub(crate) clock_difference_ms: Option<i64>,
    /// Null for a node of an earlier release, which does not report it.
    pub(crate) version: Option<String>,
    /// Process id of the node's daemon on its machine; null for a node of an earlier release.
    pub(crate) pid: Option<u32>,
}

impl From<v1::NodeView> for NodeView {
    fn from(node: v1::NodeView) -> Self {
        let state = match node.state() {
            v1::NodeState::Unspecified => "unknown",
            v1::NodeState::Alive => "alive",
            v1::NodeState::Unreachable => "unreachable",
            v1::NodeState::NotReady => "not ready",
        };
        Self {
            state,
            name: node.name,
            address: node.address,
            fabric_address: node.fabric_address,
            silent_ms: node.silent_ms,
            is_self: node.is_self,
            not_ready: node.not_ready,
            clock_difference_ms: node.clock_difference_ms,
            version: Some(node.version).filter(|version| !version.is_empty()),
            pid: Some(node.pid).filter(|pid| *pid > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{SealView, exit_code, exit_text, seed_state};
    use farfork_api::v1::{Exit, exit::How};

    fn exit(how: How) -> Exit {
        Exit { how: Some(how), ..Exit::default() }
    }

    #[test]
    fn an_exceeded_limit_is_shown_instead_of_the_signal() {
        let limit = "it needed more than its 64.0 MiB of memory";
        let ended = Exit { limit: limit.to_owned(), ..exit(How::Signal(9)) };
        assert_eq!(exit_text(Some(&ended)), format!("killed: {limit}"));
        assert_eq!(exit_text(Some(&exit(How::Signal(9)))), "killed by SIGKILL");
    }

    #[test]
    fn the_state_of_a_seed_is_where_its_memory_is() {
        let seal = |state| SealView { state, done_bytes: 1, total_bytes: 2, failure: None, image: None };
        assert_eq!(seed_state(None, false), "template");
        assert_eq!(seed_state(Some(&seal("sealing")), false), "sealing");
        assert_eq!(seed_state(Some(&seal("failed")), false), "sealing_failed");
        assert_eq!(seed_state(Some(&seal("sealed")), true), "template_ended");
    }

    #[test]
    fn a_worker_is_shown_as_ended_by_its_executor() {
        let ended = Exit { by_program: true, ..exit(How::Signal(9)) };
        assert_eq!(exit_text(Some(&ended)), "ended by its executor");
        assert_eq!(exit_code(&ended), Some(137));
    }

    #[test]
    fn a_killed_child_has_the_shells_status() {
        assert_eq!(exit_code(&exit(How::Signal(9))), Some(137));
        assert_eq!(exit_code(&exit(How::Code(42))), Some(42));
        assert_eq!(exit_code(&exit(How::Lost(String::new()))), None);
    }
}
