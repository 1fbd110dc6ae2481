//! The seeds of this node: their list, names, leases and ends. Their memory belongs to `farfork_fork::seed`, which the
//! fabric server reads.

mod budget;
mod completion;
mod label;
mod lease;
mod preparation;
mod sealing;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farfork_api::failure::Failure;
use farfork_api::limits::{PREPARE_TIMEOUT, SEED_NAME_BYTES_MAX};
use farfork_api::v1;
use farfork_fork::capture::NamespacePolicy;
use farfork_fork::image::ImageError;
use farfork_fork::seed::SeedTable;
use farfork_sys::process::ResidentMemory;
use farfork_wire::{NodeName, PAGE_SIZE, SeedId};
use tonic::Code;

use crate::affinity;
use crate::clock::Timestamp;
use crate::engine::CaptureInputs;

use budget::MemoryCharge;
pub use budget::SeedBudget;
use completion::SeedCompletion;
pub(crate) use label::check_labels;
use lease::Lease;
pub(crate) use preparation::{SeedBuilder, prepare_seed};
use sealing::SealProgress;
pub(crate) use sealing::{LoadedImages, load_images};

/// Interval between checks of leases for expiry and renewal: the precision of `--ttl`.
pub(crate) const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// Options for a new seed.
#[derive(Debug)]
pub(crate) struct PrepareOptions {
    /// Name of the seed; may be empty.
    pub(crate) name: String,
    /// Whether the parent stays stopped, as the template.
    pub(crate) freeze: bool,
    /// Time to live in milliseconds: the seed is dropped when it was not needed for this long; 0 for never.
    pub(crate) ttl_ms: u64,
    /// Keys and values with which users find the seed.
    pub(crate) labels: HashMap<String, String>,
    /// The policy for a process whose children would lack parts of its namespaces.
    pub(crate) namespaces: NamespacePolicy,
    /// Whether the seed's memory is copied to an image, which outlives the template.
    pub(crate) sealed: bool,
    /// The resources that the capture uses. The serving pager is set when the capture starts.
    pub(crate) inputs: CaptureInputs,
}

/// The seeds of this node.
#[derive(Debug)]
pub(crate) struct SeedRegistry {
    node: NodeName,
    /// The seeds that the fabric serves.
    table: Arc<SeedTable>,
    /// Address of the fabric server.
    fabric_address: SocketAddr,
    /// Directory of the images.
    images_dir: PathBuf,
    /// Limits of the memory that templates may hold.
    budget: SeedBudget,
    entries: Mutex<BTreeMap<SeedId, SeedEntry>>,
    /// Images that were found but cannot be used.
    unusable_images: Mutex<BTreeMap<SeedId, ImageError>>,
}

/// The state of a listed seed.
#[derive(Debug)]
struct SeedEntry {
    view: v1::Seed,
    /// When it was prepared, in milliseconds since boot; `None` for a seed of an image, which may be of an earlier boot.
    created_boot_ms: Option<u64>,
    completion: Arc<SeedCompletion>,
    /// The lease, if the seed has a time to live.
    lease: Option<Lease>,
    /// The state of sealing, if that was requested.
    seal_progress: Option<SealProgress>,
    /// The most memory that its template may hold later.
    memory_charge: MemoryCharge,
}

impl SeedEntry {
    /// Converts the seed for the API, with its age at `now`.
    fn to_view(&self, now: Timestamp) -> v1::Seed {
        let expires_unix_ms = self.lease.map_or(0, |lease| lease.expires_unix_ms());
        let age_ms = Timestamp { unix_ms: self.view.created_unix_ms, boot_ms: self.created_boot_ms }.age_ms_at(now);
        let seal = self.seal_progress.as_ref().map(SealProgress::view);
        v1::Seed { seal, expires_unix_ms, age_ms, ..self.view.clone() }
    }
}

impl SeedRegistry {
    /// A registry with the sealed seeds of `images`. The fabric serves the seeds of `table` at `fabric_address`.
    pub(crate) fn new(
        node: NodeName,
        table: Arc<SeedTable>,
        fabric_address: SocketAddr,
        budget: SeedBudget,
        images: LoadedImages,
    ) -> Self {
        let LoadedImages { directory, listed, refused } = images;
        Self {
            node,
            table,
            fabric_address,
            images_dir: directory,
            budget,
            entries: Mutex::new(listed),
            unusable_images: Mutex::new(refused),
        }
    }

    /// Address of the fabric server.
    pub(crate) fn fabric_address(&self) -> SocketAddr {
        self.fabric_address
    }

    /// Removes a seed's time to live, if it has one.
    pub(crate) fn clear_ttl(&self, id: &SeedId) {
        if let Some(seed) = self.entries().get_mut(id) {
            seed.lease = None;
            seed.view.ttl_ms = 0;
        }
    }

    /// Whether a process is the parent of a seed of this node.
    pub(crate) fn is_parent(&self, pid: u32, id: &SeedId) -> bool {
        self.entries().get(id).is_some_and(|seed| seed.view.parent_pid == pid)
    }

    /// Finds the seed with this name.
    pub(crate) fn find_by_name(&self, name: &str) -> Option<SeedId> {
        let listed = self.entries();
        listed.iter().find(|(_, seed)| !name.is_empty() && seed.view.name == name).map(|(id, _)| id.clone())
    }

    /// Waits until a seed is complete, or has failed.
    ///
    /// # Errors
    /// There is no such seed, or it failed.
    pub(crate) async fn wait_complete(&self, id: &SeedId) -> Result<(), Failure> {
        let seed_completion = self.entries().get(id).map(|seed| seed.completion.clone());
        let seed_completion = seed_completion.ok_or_else(|| self.unknown_seed(id))?;
        let outcome = seed_completion.wait(PREPARE_TIMEOUT).await;
        let cause = "it is not complete yet; see the node's log";
        outcome.unwrap_or_else(|| Err(Failure::new(Code::DeadlineExceeded, format!("seed {id}"), cause)))
    }

    /// Returns all seeds, converted for the API.
    pub(crate) fn all(&self) -> Vec<v1::Seed> {
        let now = Timestamp::now();
        let mut all: Vec<v1::Seed> = self.entries().values().map(|seed| seed.to_view(now)).collect();
        for view in &mut all {
            let Some(seed) = view.id.parse().ok().and_then(|id| self.table.get(&id)) else { continue };
            view.held_file_bytes = seed.held_file_usage().bytes;
            view.template_ended = !seed.has_memory();
        }
        all
    }

    /// Makes each seed release held files whose paths were removed, as far as they exceed the seed's limit.
    pub(crate) fn limit_held_files(&self) {
        let ids: Vec<SeedId> = self.entries().keys().cloned().collect();
        ids.iter().filter_map(|id| self.table.get(id)).for_each(|seed| seed.release_excess_files());
    }

    /// Returns the details of a complete seed.
    ///
    /// # Errors
    /// There is no such seed.
    pub(crate) fn detail(&self, id: &SeedId) -> Result<v1::SeedDetail, Failure> {
        let listed = self.entries().get(id).map(|seed| (seed.to_view(Timestamp::now()), seed.memory_charge().bytes));
        let (Some((mut view, own_bytes_max)), Some(seed)) = (listed, self.table.get(id)) else {
            return Err(self.unknown_seed(id));
        };
        let (descriptor, held) = (seed.descriptor(), seed.held_file_usage());
        view.held_file_bytes = held.bytes;
        view.template_ended = !seed.has_memory();
        Ok(v1::SeedDetail {
            seed: Some(view),
            mappings: to_u32(descriptor.mappings.len()),
            file_descriptors: to_u32(descriptor.file_descriptors.len()),
            shared_memory_bytes: descriptor.shared_objects.iter().map(|object| object.bytes).sum(),
            template_pid: seed.template_pid().map_or(0, i32::unsigned_abs),
            working_set_bytes: seed.working_set_pages() * PAGE_SIZE,
            own_bytes: seed
                .template_pid()
                .and_then(|pid| ResidentMemory::read(pid).ok())
                .map(|held| held.private_bytes),
            own_bytes_max,
            held_files: held.files,
            unproved_files: descriptor.unverifiable_files(),
            affinity: affinity::format_distinct_sets(descriptor.threads.iter().map(|thread| thread.cpus.as_slice())),
        })
    }

    /// Returns the data with which a node can read a complete seed, and renews the seed's lease.
    ///
    /// # Errors
    /// There is no such seed, or its template has ended.
    pub(crate) fn access(&self, id: &SeedId) -> Result<v1::SeedAccess, Failure> {
        // The caller is about to start a child. Until a node lists the child, the lease keeps the seed.
        self.renew_lease(id);
        let seed = self.table.get(id).ok_or_else(|| self.unknown_seed(id))?;
        if !seed.has_memory() {
            let cause = "its template has ended: with the child that it was made of, or killed for lack of memory";
            return Err(Failure::new(Code::FailedPrecondition, format!("seed {id}"), cause)
                .with_next_step(format!("drop it with `farfork drop {id}`, and prepare a process that runs")));
        }
        Ok(v1::SeedAccess {
            seed: id.to_string(),
            fabric_address: self.fabric_address.to_string(),
            token: seed.key().token.expose().to_vec(),
            inherits: !seed.descriptor().layers.is_empty(),
        })
    }

    /// Whether there is a seed with this id.
    pub(crate) fn is_listed(&self, id: &SeedId) -> bool {
        self.entries().contains_key(id)
    }

    /// Drops a seed with its template and image.
    ///
    /// # Errors
    /// There is no such seed.
    pub(crate) fn drop_seed(&self, id: &SeedId) -> Result<(), Failure> {
        if self.unusable_images().remove(id).is_some() {
            sealing::remove_image(&self.image_path(id));
            return Ok(());
        }
        let SeedEntry { completion, seal_progress: seal, .. } =
            self.entries().remove(id).ok_or_else(|| self.unknown_seed(id))?;
        seal.iter().for_each(sealing::discard_image);
        // Take an incomplete seed from its completion, and a complete one from the table.
        drop(completion.wait_dropped_seed(PREPARE_TIMEOUT));
        drop(self.table.remove(id));
        Ok(())
    }

    /// Returns the seeds whose lease is due for a check.
    pub(crate) fn leases_due(&self, now_unix_ms: u64) -> Vec<SeedId> {
        let is_due = |seed: &SeedEntry| seed.lease.is_some_and(|lease| lease.is_check_due(now_unix_ms));
        self.entries().iter().filter(|(_, seed)| is_due(seed)).map(|(id, _)| id.clone()).collect()
    }

    /// Renews the lease of a seed that is needed, if it has one.
    pub(crate) fn renew_lease(&self, id: &SeedId) {
        if let Some(lease) = self.entries().get_mut(id).and_then(|seed| seed.lease.as_mut()) {
            lease.renew();
        }
    }

    /// Whether a seed's lease had expired at that time, and was not renewed since.
    pub(crate) fn is_lease_expired(&self, id: &SeedId, then_unix_ms: u64) -> bool {
        let is_over = |seed: &SeedEntry| seed.lease.is_some_and(|lease| lease.is_expired(then_unix_ms));
        self.entries().get(id).is_some_and(is_over)
    }

    /// Drops a seed if its lease had expired at that time, and was not renewed since. The seed may have been dropped
    /// already.
    pub(crate) fn drop_expired(&self, id: &SeedId, then_unix_ms: u64) {
        if self.is_lease_expired(id, then_unix_ms) && self.drop_seed(id).is_ok() {
            tracing::info!(seed = %id, "dropped: its lease has expired");
        }
    }

    /// Returns the ids of the seeds that the next daemon serves again: those that are sealed, or may be until this daemon ends.
    pub(crate) fn kept_seed_ids(&self) -> Vec<String> {
        let may_be_kept = |seed: &SeedEntry| {
            matches!(seed.seal_progress, Some(SealProgress::Underway(_) | SealProgress::Sealed { .. }))
        };
        self.entries().iter().filter(|(_, seed)| may_be_kept(seed)).map(|(id, _)| id.to_string()).collect()
    }

    /// Drops all seeds except those with complete images, which the next daemon serves.
    pub(crate) fn drop_all(&self) {
        let is_sealed = |seed: &SeedEntry| matches!(seed.seal_progress, Some(SealProgress::Sealed { .. }));
        let all: Vec<SeedId> =
            self.entries().iter().filter(|(_, seed)| !is_sealed(seed)).map(|(id, _)| id.clone()).collect();
        for id in all {
            // Fails if another request has dropped the seed.
            let _ = self.drop_seed(&id);
        }
    }

    fn check_name_free(&self, name: &str) -> Result<(), Failure> {
        if self.find_by_name(name).is_some() { Err(name_taken(name)) } else { Ok(()) }
    }

    fn unknown_seed(&self, id: &SeedId) -> Failure {
        match self.unusable_images().get(id) {
            None => unknown_seed(id),
            Some(error) => Failure::new(Code::DataLoss, format!("seed {id}"), error)
                .with_next_step(format!("remove the image with `farfork drop {id}`, and prepare its parent again")),
        }
    }

    fn unusable_images(&self) -> MutexGuard<'_, BTreeMap<SeedId, ImageError>> {
        self.unusable_images.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<SeedId, SeedEntry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks the name of a new seed. A name has no dot, so it cannot be mistaken for an id.
///
/// # Errors
/// The name is too long, or has a character other than letters, digits, `-` and `_`.
pub(crate) fn check_name(name: &str) -> Result<(), Failure> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if name.len() <= SEED_NAME_BYTES_MAX && name.bytes().all(is_plain) {
        return Ok(());
    }
    let cause = format!("it is not a valid name: use 1 to {SEED_NAME_BYTES_MAX} letters, digits, `-` and `_`");
    let object = match name.len() {
        0..=SEED_NAME_BYTES_MAX => format!("name `{name}`"),
        bytes => format!("name of {bytes} bytes"),
    };
    Err(Failure::new(Code::InvalidArgument, object, cause))
}

fn to_u32(items: usize) -> u32 {
    u32::try_from(items).unwrap_or(u32::MAX)
}

fn name_taken(name: &str) -> Failure {
    Failure::new(Code::AlreadyExists, format!("name `{name}`"), "another seed of this node has it")
        .with_next_step(format!("choose another, or drop that one: `farfork drop {name}`"))
}

fn unknown_seed(id: &SeedId) -> Failure {
    Failure::new(Code::NotFound, format!("seed {id}"), "its node has no such seed")
        .with_next_step("list seeds with `farfork seeds`; unless sealed, they end with their node's daemon")
}

#[cfg(test)]
mod tests {
    use super::check_name;

    #[test]
    fn a_name_in_the_form_of_an_id_is_refused() {
        assert!(check_name("warm-python_3").is_ok());
        assert!(check_name("").is_ok(), "no name");
        assert!(check_name("n1.s00f3a96c5d217e84").is_err());
        assert!(check_name(&"x".repeat(64)).is_err());
    }
}
