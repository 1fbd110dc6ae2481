//! How a seed is made: listed, and answered, when nothing of the process is refused and it runs again; completed while the
//! answer travels; served when it is complete. All of it but the wait happens in the thread that captures.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

use farfork_fabric::{Region as _, SeedKey};
use farfork_fork::capture::{Begun, CaptureError, Captured, Observer};
use farfork_fork::phase;
use farfork_fork::seed::Seed;
use farfork_sys::identity::ProcessIdentity;
use farfork_wire::descriptor::ExtentId;
use farfork_wire::token::TOKEN_BYTES;
use farfork_wire::{PAGE_SIZE, SeedId, Token};
use tokio::sync::oneshot;
use tonic::Code;

use super::budget::{Holding, holdings};
use super::lease::Lease;
use super::readiness::Readiness;
use super::sealing::{self, Seal};
use super::{Listed, PrepareOptions, Seeds, count, name_taken};
use crate::api::v1;
use crate::clock;
use crate::engine::{CaptureManner, capture_failure, random_number};
use crate::failure::Failure;
use crate::metrics::Work;
use crate::node::Node;
use crate::service;

/// Who is told how it went; says whether they still want to know.
pub(crate) type Answer = Box<dyn FnOnce(Result<v1::Seed, Failure>) -> bool + Send>;

/// Makes a seed of a process. Where nobody waits for the answer when it comes, nobody would know of the seed: it is
/// dropped.
///
/// # Errors
/// The name is taken, it is a paused child's, or nothing can be captured now; why the process is not captured is in the answer.
pub(crate) fn make(
    node: &Arc<Node>,
    pid: u32,
    mut options: PrepareOptions,
) -> Result<oneshot::Receiver<Result<v1::Seed, Failure>>, Failure> {
    let manner = CaptureManner { freeze: options.freeze, namespaces: options.namespaces };
    let asker = (std::mem::take(&mut options.sockets), options.offer.take());
    let lineage = node.lineage_of(pid)?;
    let (answer, answered) = oneshot::channel();
    let maker = Maker::new(node.clone(), pid, options, Box::new(move |made| answer.send(made).is_ok()))?;
    node.engine.capture(pid, manner, asker, lineage, Box::new(maker))?;
    Ok(answered)
}

/// Makes one seed, of what a capture tells.
pub(crate) struct Maker {
    node: Arc<Node>,
    pid: u32,
    options: PrepareOptions,
    began: Instant,
    /// Taken when it is given.
    answer: Option<Answer>,
    /// The seed, when it is listed.
    unfinished: Option<Unfinished>,
}

/// A seed that is listed, and not complete yet.
struct Unfinished {
    id: SeedId,
    token: Token,
    readiness: Arc<Readiness>,
}

impl Observer for Maker {
    fn begun(&mut self, begun: Result<Begun, CaptureError>) -> bool {
        let listed = begun.map_err(|error| capture_failure(self.pid, &error)).and_then(|begun| self.list(&begun));
        match &listed {
            Ok(seed) => self.node.metrics.prepared(seed),
            Err(failure) => self.node.metrics.failed(Work::Prepare, failure),
        }
        let is_listed = listed.is_ok();
        let is_wanted = self.answer.take().is_some_and(|answer| answer(listed));
        if let (false, Some(Unfinished { id, readiness, .. })) = (is_wanted, &self.unfinished) {
            tracing::info!(seed = %id, "dropped: who asked for it has gone");
            self.node.seeds.listed().remove(id);
            readiness.conclude(Err(super::unknown(id)));
        }
        is_listed && is_wanted
    }

    fn completed(&mut self, captured: Result<Captured, CaptureError>) {
        let Some(Unfinished { id, token, readiness }) = self.unfinished.take() else { return };
        let completed = captured
            .map_err(|error| capture_failure(self.pid, &error))
            .and_then(|captured| Seed::new(id.clone(), token, captured).map_err(|error| self.broken(&error)));
        match completed {
            Ok(seed) => {
                let served = self.node.seeds.serve(&id, seed, self.pid);
                match &served {
                    Ok(Some(before)) => service::foretell(&self.node, &before.seed, &id),
                    // What is made to be kept, or stands still for its seed, is hardly ever forked at once.
                    Ok(None) if !self.options.sealed && !self.options.freeze => service::expect(&self.node, &id),
                    _ => {}
                }
                readiness.leave(served.err().map(|unlisted| *unlisted));
                if self.options.sealed {
                    sealing::begin(&self.node, &id);
                }
            }
            Err(failure) => {
                tracing::warn!(seed = %id, %failure, "a seed cannot be forked");
                let cause = format!("it could not be completed: {}", failure.cause());
                let step = format!("drop it with `farfork drop {id}`, and prepare process {} again", self.pid);
                let told = Failure::new(Code::FailedPrecondition, format!("seed {id}"), cause).with_next_step(step);
                readiness.conclude(Err(told));
            }
        }
    }
}

impl Maker {
    /// For a seed of a process that is about to be captured.
    ///
    /// # Errors
    /// The name is taken, or there is no room for what its template would hold.
    pub(crate) fn new(node: Arc<Node>, pid: u32, options: PrepareOptions, answer: Answer) -> Result<Self, Failure> {
        node.seeds.check_free(&options.name)?;
        if !options.freeze {
            node.seeds.check_room(pid)?;
        }
        Ok(Self { node, pid, options, began: Instant::now(), answer: Some(answer), unfinished: None })
    }

    /// Lists the seed: from now on it can be asked for.
    fn list(&mut self, begun: &Begun) -> Result<v1::Seed, Failure> {
        let _phase = phase!("prepare.list");
        let random = random_number().map_err(|error| self.broken(&error))?;
        let id = SeedId::new(self.node.seeds.node.clone(), random);
        let mut token = [0; TOKEN_BYTES];
        getrandom::fill(&mut token).map_err(|error| self.broken(&error))?;
        let (view, readiness) = (self.view(&id, begun), Arc::new(Readiness::default()));
        let mut listed = self.node.seeds.listed();
        // Another request may have taken the name meanwhile.
        if listed.values().any(|other| !view.name.is_empty() && other.view.name == view.name) {
            return Err(name_taken(&view.name));
        }
        let held = Holding::new(self.pid, begun.populated_bytes);
        if !self.options.freeze {
            self.node.seeds.budget.admit(self.pid, held, &holdings(listed.iter()))?;
        }
        let seal = self.options.sealed.then(|| Seal::Underway(Arc::default()));
        let lease = Lease::begin(self.options.ttl_ms, view.created_unix_ms);
        let seed = Listed { view, readiness: readiness.clone(), lease, seal, held };
        let told = seed.told();
        listed.insert(id.clone(), seed);
        drop(listed);
        self.unfinished = Some(Unfinished { id, token: Token::from_bytes(token), readiness });
        Ok(told)
    }

    fn view(&self, id: &SeedId, begun: &Begun) -> v1::Seed {
        let (created_unix_ms, ttl_ms) = (clock::unix_ms_now(), self.options.ttl_ms);
        v1::Seed {
            id: id.to_string(),
            name: self.options.name.clone(),
            node: id.node().to_string(),
            parent_pid: self.pid,
            command: begun.arguments.join(" "),
            created_unix_ms,
            ttl_ms,
            labels: self.options.labels.clone(),
            threads: count(begun.times.threads),
            memory_bytes: begun.populated_bytes,
            pause_us: u64::try_from(begun.times.pause.as_micros()).unwrap_or(u64::MAX),
            prepare_us: u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX),
            frozen: self.options.freeze,
            notes: begun.notes.clone(),
            ..v1::Seed::default()
        }
    }

    fn broken(&self, error: &dyn Display) -> Failure {
        Failure::new(Code::Internal, format!("process {}", self.pid), error)
    }
}

impl Seeds {
    /// From now on the seed is served. Gives the seed of its process before it, where one is known.
    ///
    /// # Errors
    /// It was dropped meanwhile, and comes back.
    fn serve(&self, id: &SeedId, seed: Seed, parent: u32) -> Result<Option<Arc<SeedKey>>, Box<Seed>> {
        let mut listed = self.listed();
        let Some(known) = listed.get_mut(id) else { return Err(Box::new(seed)) };
        let shared = seed.descriptor().shared_objects.iter().map(|object| object.bytes).sum::<u64>();
        let own = seed.descriptor().extents.iter().flat_map(|extent| &extent.populated).map(|run| run.count);
        let inherited = seed.descriptor().extents.iter().flat_map(|extent| &extent.inherited).map(|run| run.count);
        known.held.bytes = own.clone().sum::<u64>() * PAGE_SIZE + shared;
        known.view.memory_bytes = own.chain(inherited).sum::<u64>() * PAGE_SIZE;
        known.view.inherits = seed.descriptor().layers.iter().map(|layer| layer.seed.to_string()).collect();
        known.view.descriptor_bytes = seed.extent_bytes(ExtentId::DESCRIPTOR).unwrap_or(0);
        match ProcessIdentity::of(parent.cast_signed()) {
            Ok(parent) => Ok(self.table.insert_of(parent, Arc::new(seed))),
            // It has ended already.
            Err(_) => {
                self.table.insert(Arc::new(seed));
                Ok(None)
            }
        }
    }
}
