//! The seeds of this node: what is listed of them, their names, their end. Their memory is `farfork_fork::seed`'s
//! business, which the fabric's server asks.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farfork_fabric::Region as _;
use farfork_fork::capture::ProgramSockets;
use farfork_fork::phase;
use farfork_fork::seed::{Seed, SeedTable};
use farfork_wire::descriptor::ExtentId;
use farfork_wire::token::TOKEN_BYTES;
use farfork_wire::{NodeName, PAGE_SIZE, SeedId, Token};
use tonic::Code;

use crate::api::v1;
use crate::clock;
use crate::engine::{Engine, random_number};
use crate::failure::Failure;

/// Longest name of a seed, in bytes: it stands in a column of a table.
const NAME_BYTES_MAX: usize = 63;

/// Between two looks for seeds whose time is over: as precise as `--ttl` need be.
pub(crate) const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// How a seed is to be made.
#[derive(Debug, Clone)]
pub(crate) struct PrepareOptions {
    /// May be empty.
    pub(crate) name: String,
    /// Keep the parent stopped, as the template.
    pub(crate) freeze: bool,
    /// Drop it after so long, in milliseconds; 0 for never.
    pub(crate) ttl_ms: u64,
    /// The process's connections to this daemon.
    pub(crate) sockets: ProgramSockets,
}

/// The seeds of this node.
#[derive(Debug)]
pub(crate) struct Seeds {
    node: NodeName,
    /// What the fabric serves.
    table: Arc<SeedTable>,
    /// Where it serves it.
    fabric_address: SocketAddr,
    listed: Mutex<BTreeMap<SeedId, v1::Seed>>,
}

impl Seeds {
    /// No seeds yet. The fabric serves those of `table` at `fabric_address`.
    pub(crate) fn new(node: NodeName, table: Arc<SeedTable>, fabric_address: SocketAddr) -> Self {
        Self { node, table, fabric_address, listed: Mutex::default() }
    }

    /// Makes a seed of a process.
    ///
    /// # Errors
    /// The process cannot be captured, and runs on; or the name is taken.
    pub(crate) fn prepare(&self, engine: &Engine, pid: u32, mut options: PrepareOptions) -> Result<v1::Seed, Failure> {
        self.check_free(&options.name)?;
        let began = Instant::now();
        let sockets = std::mem::take(&mut options.sockets);
        let captured = phase!("prepare.capture", engine.capture(pid, options.freeze, sockets))?;
        let broken = |error: &dyn Display| Failure::new(Code::Internal, format!("process {pid}"), error);
        let id = SeedId::new(self.node.clone(), random_number().map_err(|error| broken(&error))?);
        let mut token = [0; TOKEN_BYTES];
        getrandom::fill(&mut token).map_err(|error| broken(&error))?;
        let seed = phase!("prepare.encode", Seed::new(id.clone(), Token::from_bytes(token), captured));
        let seed = seed.map_err(|error| broken(&error))?;
        let prepare_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        let view = view(&seed, pid, options, prepare_us);

        let mut listed = self.listed();
        // Another request may have taken the name meanwhile.
        if listed.values().any(|other| !view.name.is_empty() && other.name == view.name) {
            return Err(name_taken(&view.name));
        }
        listed.insert(id, view.clone());
        self.table.insert(Arc::new(seed));
        Ok(view)
    }

    /// A seed that has a time limit loses it.
    pub(crate) fn keep(&self, id: &SeedId) {
        if let Some(seed) = self.listed().get_mut(id) {
            seed.expires_unix_ms = 0;
        }
    }

    /// Whether a process is the parent of a seed of this node.
    pub(crate) fn is_parent(&self, pid: u32, id: &SeedId) -> bool {
        self.listed().get(id).is_some_and(|seed| seed.parent_pid == pid)
    }

    /// The seed of a name.
    pub(crate) fn by_name(&self, name: &str) -> Option<SeedId> {
        let listed = self.listed();
        listed.iter().find(|(_, seed)| !name.is_empty() && seed.name == name).map(|(id, _)| id.clone())
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<v1::Seed> {
        self.listed().values().cloned().collect()
    }

    /// All that is known of one.
    ///
    /// # Errors
    /// There is none of that id.
    pub(crate) fn detail(&self, id: &SeedId) -> Result<v1::SeedDetail, Failure> {
        let (Some(view), Some(seed)) = (self.listed().get(id).cloned(), self.table.get(id)) else {
            return Err(unknown(id));
        };
        let descriptor = seed.descriptor();
        Ok(v1::SeedDetail {
            seed: Some(view),
            mappings: count(descriptor.mappings.len()),
            file_descriptors: count(descriptor.file_descriptors.len()),
            shared_memory_bytes: descriptor.shared_objects.iter().map(|object| object.bytes).sum(),
            template_pid: seed.template_pid().unsigned_abs(),
        })
    }

    /// What another node needs to read one.
    ///
    /// # Errors
    /// There is none of that id.
    pub(crate) fn access(&self, id: &SeedId) -> Result<v1::SeedAccess, Failure> {
        let seed = self.table.get(id).ok_or_else(|| unknown(id))?;
        Ok(v1::SeedAccess {
            seed: id.to_string(),
            fabric_address: self.fabric_address.to_string(),
            token: seed.key().token.expose().to_vec(),
        })
    }

    /// Ends a seed and its template.
    ///
    /// # Errors
    /// There is none of that id.
    pub(crate) fn drop(&self, id: &SeedId) -> Result<(), Failure> {
        self.listed().remove(id).ok_or_else(|| unknown(id))?;
        drop(self.table.remove(id));
        Ok(())
    }

    /// Ends the seeds whose time is over.
    pub(crate) fn drop_expired(&self) {
        let now = clock::unix_ms_now();
        let is_over = |seed: &v1::Seed| (1..=now).contains(&seed.expires_unix_ms);
        let over: Vec<SeedId> =
            self.listed().iter().filter(|(_, seed)| is_over(seed)).map(|(id, _)| id.clone()).collect();
        for id in over {
            tracing::info!(seed = %id, "dropped: its time is over");
            // Somebody may have dropped it meanwhile.
            let _ = self.drop(&id);
        }
    }

    /// Ends all of them.
    pub(crate) fn drop_all(&self) {
        let all: Vec<SeedId> = self.listed().keys().cloned().collect();
        for id in all {
            // Somebody may have dropped it meanwhile.
            let _ = self.drop(&id);
        }
    }

    fn check_free(&self, name: &str) -> Result<(), Failure> {
        if self.by_name(name).is_some() { Err(name_taken(name)) } else { Ok(()) }
    }

    fn listed(&self) -> MutexGuard<'_, BTreeMap<SeedId, v1::Seed>> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a name may be given: it must not look like an id, which has a point.
///
/// # Errors
/// It may not.
pub(crate) fn check_name(name: &str) -> Result<(), Failure> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if name.len() <= NAME_BYTES_MAX && name.bytes().all(is_plain) {
        return Ok(());
    }
    let cause = format!("it is no name: use 1 to {NAME_BYTES_MAX} letters, digits, `-` and `_`");
    Err(Failure::new(Code::InvalidArgument, format!("name `{name}`"), cause))
}

fn view(seed: &Seed, pid: u32, options: PrepareOptions, prepare_us: u64) -> v1::Seed {
    let (descriptor, id) = (seed.descriptor(), &seed.key().seed);
    let created_unix_ms = clock::unix_ms_now();
    let pages: u64 = descriptor.extents.iter().flat_map(|extent| &extent.populated).map(|run| run.count).sum();
    v1::Seed {
        id: id.to_string(),
        name: options.name,
        node: id.node().to_string(),
        parent_pid: pid,
        command: descriptor.process.arguments.join(" "),
        created_unix_ms,
        expires_unix_ms: if options.ttl_ms > 0 { created_unix_ms.saturating_add(options.ttl_ms) } else { 0 },
        threads: count(descriptor.threads.len()),
        memory_bytes: pages * PAGE_SIZE,
        descriptor_bytes: seed.extent_bytes(ExtentId::DESCRIPTOR).unwrap_or(0),
        pause_us: u64::try_from(seed.times().pause.as_micros()).unwrap_or(u64::MAX),
        prepare_us,
        frozen: options.freeze,
        phases: Vec::new(),
    }
}

fn count(items: usize) -> u32 {
    u32::try_from(items).unwrap_or(u32::MAX)
}

fn name_taken(name: &str) -> Failure {
    Failure::new(Code::AlreadyExists, format!("name `{name}`"), "another seed of this node has it")
        .with_next_step(format!("choose another, or drop that one: `farfork drop {name}`"))
}

fn unknown(id: &SeedId) -> Failure {
    Failure::new(Code::NotFound, format!("seed {id}"), "its node has no such seed")
        .with_next_step("list seeds with `farfork seeds`; they end with their node's daemon")
}

#[cfg(test)]
mod tests {
    use super::check_name;

    #[test]
    fn a_name_is_never_taken_for_an_id() {
        assert!(check_name("warm-python_3").is_ok());
        assert!(check_name("").is_ok(), "no name");
        assert!(check_name("n1.s00f3a96c5d217e84").is_err());
        assert!(check_name(&"x".repeat(64)).is_err());
    }
}
