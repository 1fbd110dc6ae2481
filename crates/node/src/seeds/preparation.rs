//! Makes a seed of a process. The request is answered once the seed is listed: the capture can no longer be refused,
//! and the process runs again. The seed is completed while the reply travels, then served. After the first checks, all
//! steps run in the capturing thread. The requester only awaits the outcome.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

use farfork_api::failure::Failure;
use farfork_api::v1;
use farfork_fabric::{Region as _, SeedKey};
use farfork_fork::capture::{CaptureCallbacks, CaptureError, CapturedTree, ReadyTemplate};
use farfork_fork::phase;
use farfork_fork::seed::Seed;
use farfork_sys::process_identity::ProcessIdentity;
use farfork_wire::descriptor::ExtentId;
use farfork_wire::token::TOKEN_BYTES;
use farfork_wire::{PAGE_SIZE, SeedId, Token};
use tokio::sync::oneshot;
use tonic::Code;

use super::budget::{MemoryCharge, memory_charges};
use super::completion::SeedCompletion;
use super::lease::Lease;
use super::sealing::{self, SealProgress};
use super::{PrepareOptions, SeedEntry, SeedRegistry, name_taken, to_u32};
use crate::clock::{self, Timestamp};
use crate::engine::{CaptureInputs, CaptureMode, capture_failure, random_id};
use crate::metrics::MeasuredOperation;
use crate::node::Node;
use crate::service;

/// Receives the outcome of prepare. Returns whether the requester still wants the seed.
pub(crate) type PrepareCallback = Box<dyn FnOnce(Result<v1::Seed, Failure>) -> bool + Send>;

/// Makes a seed of a process. If the receiver was dropped before the seed is ready, the seed is dropped too.
///
/// # Errors
/// The name is taken, the process belongs to a paused child, or no capture can be started. A failure of the capture
/// itself is sent to the receiver.
pub(crate) fn prepare_seed(
    node: &Arc<Node>,
    pid: u32,
    mut options: PrepareOptions,
) -> Result<oneshot::Receiver<Result<v1::Seed, Failure>>, Failure> {
    let mode = CaptureMode { freeze: options.freeze, namespaces: options.namespaces };
    let lineage = node.lineage_of(pid)?;
    let inputs = CaptureInputs { serving_pager: lineage, ..std::mem::take(&mut options.inputs) };
    let (answer, answered) = oneshot::channel();
    let builder = SeedBuilder::new(node.clone(), pid, options, Box::new(move |made| answer.send(made).is_ok()))?;
    node.engine.capture(pid, mode, inputs, Box::new(builder))?;
    Ok(answered)
}

/// Makes one seed from the results of a capture.
pub(crate) struct SeedBuilder {
    node: Arc<Node>,
    pid: u32,
    options: PrepareOptions,
    began: Instant,
    /// `None` after it was called.
    callback: Option<PrepareCallback>,
    /// The seed while it is listed but not complete.
    incomplete: Option<IncompleteSeed>,
}

/// A seed that is listed but not complete yet.
struct IncompleteSeed {
    id: SeedId,
    token: Token,
    completion: Arc<SeedCompletion>,
}

impl CaptureCallbacks for SeedBuilder {
    fn template_ready(&mut self, ready_template: Result<ReadyTemplate, CaptureError>) -> bool {
        let listed = ready_template
            .map_err(|error| capture_failure(self.pid, &error))
            .and_then(|ready_template| self.list_seed(&ready_template));
        match &listed {
            Ok(seed) => self.node.metrics.record_prepare(seed),
            Err(failure) => self.node.metrics.record_failure(MeasuredOperation::Prepare, failure),
        }
        let is_listed = listed.is_ok();
        let is_wanted = self.callback.take().is_some_and(|answer| answer(listed));
        if let (false, Some(IncompleteSeed { id, completion, .. })) = (is_wanted, &self.incomplete) {
            tracing::info!(seed = %id, "dropped: the requester has disconnected");
            self.node.seeds.entries().remove(id);
            completion.complete(Err(super::unknown_seed(id)));
        }
        is_listed && is_wanted
    }

    fn capture_completed(&mut self, captured: Result<CapturedTree, CaptureError>) {
        let Some(IncompleteSeed { id, token, completion }) = self.incomplete.take() else { return };
        let completed = captured
            .map_err(|error| capture_failure(self.pid, &error))
            .and_then(|captured| Seed::new(id.clone(), token, captured).map_err(|error| self.process_failure(&error)));
        match completed {
            Ok(seed) => {
                let served = self.node.seeds.serve_seed(&id, seed, self.pid);
                match &served {
                    Ok(Some(before)) => service::prewarm_next_seed(&self.node, &before.seed, &id),
                    // A seed that is sealed, or whose parent is frozen, is rarely forked right away.
                    Ok(None) if !self.options.sealed && !self.options.freeze => {
                        service::prewarm_first_seed(&self.node, &id)
                    }
                    _ => {}
                }
                completion.complete_with(served.err().map(|unlisted| *unlisted));
                if self.options.sealed {
                    sealing::start_sealing(&self.node, &id);
                }
            }
            Err(failure) => {
                tracing::warn!(seed = %id, %failure, "a seed cannot be forked");
                let cause = format!("it could not be completed: {}", failure.cause());
                let step = format!("drop it with `farfork drop {id}`, and prepare process {} again", self.pid);
                let failure = Failure::new(Code::FailedPrecondition, format!("seed {id}"), cause).with_next_step(step);
                completion.complete(Err(failure));
            }
        }
    }
}

impl SeedBuilder {
    /// Creates a builder for the seed of a process that is about to be captured.
    ///
    /// # Errors
    /// The name is taken, or the memory budget has no room for the template.
    pub(crate) fn new(
        node: Arc<Node>,
        pid: u32,
        options: PrepareOptions,
        answer: PrepareCallback,
    ) -> Result<Self, Failure> {
        node.seeds.check_name_free(&options.name)?;
        if !options.freeze {
            node.seeds.check_budget(pid)?;
        }
        Ok(Self { node, pid, options, began: Instant::now(), callback: Some(answer), incomplete: None })
    }

    /// Lists the seed, so that requests find it.
    fn list_seed(&mut self, ready_template: &ReadyTemplate) -> Result<v1::Seed, Failure> {
        let _phase = phase!("prepare.list");
        let random = random_id().map_err(|error| self.process_failure(&error))?;
        let id = SeedId::new(self.node.seeds.node.clone(), random);
        let mut token = [0; TOKEN_BYTES];
        getrandom::fill(&mut token).map_err(|error| self.process_failure(&error))?;
        let (view, seed_completion) = (self.view(&id, ready_template), Arc::new(SeedCompletion::default()));
        let mut listed = self.node.seeds.entries();
        // Another request may have taken the name since the first check.
        if listed.values().any(|other| !view.name.is_empty() && other.view.name == view.name) {
            return Err(name_taken(&view.name));
        }
        let held = MemoryCharge::new(self.pid, ready_template.populated_bytes);
        if !self.options.freeze {
            self.node.seeds.budget.check_charge(self.pid, held, &memory_charges(listed.iter()))?;
        }
        let seal = self.options.sealed.then(|| SealProgress::Underway(Arc::default()));
        let lease = Lease::new(self.options.ttl_ms, view.created_unix_ms);
        let seed = SeedEntry {
            view,
            created_boot_ms: Some(clock::boot_ms_now()),
            completion: seed_completion.clone(),
            lease,
            seal_progress: seal,
            memory_charge: held,
        };
        let listed_view = seed.to_view(Timestamp::now());
        listed.insert(id.clone(), seed);
        drop(listed);
        self.incomplete = Some(IncompleteSeed { id, token: Token::from_bytes(token), completion: seed_completion });
        Ok(listed_view)
    }

    fn view(&self, id: &SeedId, ready_template: &ReadyTemplate) -> v1::Seed {
        let (created_unix_ms, ttl_ms) = (clock::unix_ms_now(), self.options.ttl_ms);
        v1::Seed {
            id: id.to_string(),
            name: self.options.name.clone(),
            node: id.node().to_string(),
            parent_pid: self.pid,
            command: ready_template.arguments.join(" "),
            created_unix_ms,
            ttl_ms,
            labels: self.options.labels.clone(),
            processes: to_u32(ready_template.processes),
            threads: to_u32(ready_template.threads),
            memory_bytes: ready_template.populated_bytes,
            pause_us: u64::try_from(ready_template.times.pause.as_micros()).unwrap_or(u64::MAX),
            prepare_us: u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX),
            frozen: self.options.freeze,
            notes: ready_template.notes.clone(),
            ..v1::Seed::default()
        }
    }

    fn process_failure(&self, error: &dyn Display) -> Failure {
        Failure::new(Code::Internal, format!("process {}", self.pid), error)
    }
}

impl SeedRegistry {
    /// Starts to serve the seed. Returns the key of the process's previous seed, if known.
    ///
    /// # Errors
    /// The seed was dropped before this call. The error contains the [`Seed`].
    fn serve_seed(&self, id: &SeedId, seed: Seed, parent: u32) -> Result<Option<Arc<SeedKey>>, Box<Seed>> {
        let mut listed = self.entries();
        let Some(known) = listed.get_mut(id) else { return Err(Box::new(seed)) };
        let shared = seed.descriptor().shared_objects.iter().map(|object| object.bytes).sum::<u64>();
        let own = seed.descriptor().extents.iter().flat_map(|extent| &extent.populated).map(|run| run.count);
        let inherited = seed.descriptor().extents.iter().flat_map(|extent| &extent.inherited).map(|run| run.count);
        known.memory_charge.bytes = own.clone().sum::<u64>() * PAGE_SIZE + shared;
        known.view.memory_bytes = own.chain(inherited).sum::<u64>() * PAGE_SIZE;
        known.view.inherits = seed.descriptor().layers.iter().map(|layer| layer.seed.to_string()).collect();
        known.view.descriptor_bytes = seed.extent_bytes(ExtentId::DESCRIPTOR).unwrap_or(0);
        match ProcessIdentity::of(parent.cast_signed()) {
            Ok(parent) => Ok(self.table.insert_successor(parent, Arc::new(seed))),
            // The process has ended, so its previous seed is unknown.
            Err(_) => {
                self.table.insert(Arc::new(seed));
                Ok(None)
            }
        }
    }
}
