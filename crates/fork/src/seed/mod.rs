//! The seeds of a node: their descriptors, and the memory that the fabric serves.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use farfork_fabric::{Exporter, LocalTemplate, Refusal, Region, SeedKey, TemplateMemory};
use farfork_sys::pidfd;
use farfork_sys::process_identity::ProcessIdentity;
use farfork_wire::descriptor::{ExtentId, ExtentSource, OversizedDescriptor, encode};
use farfork_wire::{Descriptor, PAGE_SIZE, SeedId, Token};

use crate::capture::{CaptureTimes, CapturedTree, HeldFile, SharedCopy, TemplateGuard};
use crate::image::{self, Image, ImageError, ImageHeader, ImageProgress};
use crate::pager::{AccessReport, LearnerThread, ProcessHistory, SharedWorkingSet};
use crate::resume::LayerReader;

/// Why a captured process does not become a seed.
#[derive(Debug, thiserror::Error)]
pub enum SeedError {
    /// A template has already ended.
    #[error("its template cannot be opened: {0}")]
    OpenTemplate(#[source] io::Error),
    /// The descriptor is too large.
    #[error(transparent)]
    Descriptor(#[from] OversizedDescriptor),
}

/// A seed: a descriptor, and the template or image that holds its memory. Dropping it ends the template; an image stays.
#[derive(Debug)]
pub struct Seed {
    key: Arc<SeedKey>,
    descriptor: Arc<Descriptor>,
    encoded_descriptor: Vec<u8>,
    memory: SeedMemory,
    times: CaptureTimes,
    working_set: Arc<SharedWorkingSet>,
}

/// The holder of a seed's memory.
#[derive(Debug)]
enum SeedMemory {
    Template(SeedTemplate),
    Image(Box<Image>),
}

mod held_files;
use held_files::{HeldFileError, HeldFileFailure};

/// A template, with copies of the state that fork(2) would share with the parent.
#[derive(Debug)]
struct SeedTemplate {
    shared_copies: Vec<SharedCopy>,
    /// Held files, in the order of the descriptor's file versions. `None` for files that were released.
    held_files: RwLock<Vec<Option<HeldFile>>>,
    /// Templates by process number.
    processes: Vec<ProcessTemplate>,
    /// Keeps the template alive until the seed ends; never accessed. The mutex only makes the seed `Sync`.
    _template: Mutex<TemplateGuard>,
}

/// The template of one process.
#[derive(Debug)]
struct ProcessTemplate {
    memory: TemplateMemory,
    pid: i32,
    pidfd: OwnedFd,
}

impl ProcessTemplate {
    fn open(pid: i32) -> io::Result<Self> {
        let pidfd = pidfd::open(pid)?;
        Ok(Self { memory: TemplateMemory::new(pidfd.try_clone()?)?, pid, pidfd })
    }

    fn has_ended(&self) -> bool {
        matches!(pidfd::wait_exit(&self.pidfd, Duration::ZERO), Ok(true))
    }
}

impl Seed {
    /// Makes a seed of a captured process. `token` is random, and gives access to the seed.
    ///
    /// # Errors
    /// [`SeedError`].
    pub fn new(id: SeedId, token: Token, captured: CapturedTree) -> Result<Self, SeedError> {
        let CapturedTree { descriptor, template, shared_copies, held_files, times } = captured;
        let files = RwLock::new(held_files);
        let templates = template.pids().iter().map(|pid| ProcessTemplate::open(*pid)).collect::<io::Result<_>>();
        let templates = templates.map_err(SeedError::OpenTemplate)?;
        let seed_template =
            SeedTemplate { shared_copies, held_files: files, processes: templates, _template: Mutex::new(template) };
        let key = Arc::new(SeedKey { seed: id, token });
        let (encoded, working_set) = (encode(&descriptor)?, Arc::default());
        let descriptor = Arc::new(descriptor);
        Ok(Self {
            key,
            encoded_descriptor: encoded,
            descriptor,
            memory: SeedMemory::Template(seed_template),
            times,
            working_set,
        })
    }

    /// Creates the seed of an image, with the working set next to it.
    pub fn from_image(image: Image) -> Self {
        let descriptor = image.descriptor();
        let working_set =
            SharedWorkingSet::from_saved(&image.load_working_set(), |extent, page| has_data(descriptor, extent, page));
        Self::with_image(image, Arc::new(working_set))
    }

    fn with_image(image: Image, working_set: Arc<SharedWorkingSet>) -> Self {
        let head = image.head();
        Self {
            key: Arc::new(SeedKey { seed: head.seed.clone(), token: head.token }),
            descriptor: Arc::new(image.descriptor().clone()),
            encoded_descriptor: head.descriptor.clone(),
            memory: SeedMemory::Image(Box::new(image)),
            times: CaptureTimes::default(),
            working_set,
        }
    }

    /// Writes the seed's image, with the daemon's state, and opens it. Reads inherited pages through `others`; in the
    /// image, they are the seed's own. Blocks.
    ///
    /// # Errors
    /// [`ImageError`]; no file is left then.
    pub fn seal(
        &self,
        others: &LayerReader,
        about: Vec<u8>,
        path: &Path,
        progress: &ImageProgress,
    ) -> Result<Image, ImageError> {
        let (seed, token) = (self.key.seed.clone(), self.key.token);
        let mut head = ImageHeader { seed, token, descriptor: Vec::new(), daemon_state: about };
        let read = |extent, offset, into: &mut [u8]| self.read_with_layers(others, extent, offset, into);
        let (mapped_count, mut changed) = (self.descriptor.mapped_files.len(), BTreeSet::new());
        // A file may be changed while it is copied. Each further round excludes at least one more file.
        loop {
            changed.append(&mut self.changed_files());
            let mut whole = image::flatten_layers(&self.descriptor);
            self.exclude_files(&changed, &mut whole);
            head.descriptor = encode(&whole)?;
            match image::write_image(&read, &whole, &head, path, progress) {
                Ok(()) => {}
                Err(error) => {
                    changed.insert(mapped_count + changed_version(&error).ok_or(error)?);
                    continue;
                }
            }
            // The copied pages of a mapping may show a later change of its file.
            if self.changed_files().iter().all(|index| *index >= mapped_count || changed.contains(index)) {
                return Image::open(path);
            }
        }
    }

    /// Reads pages that the seed owns or inherits.
    fn read_with_layers(
        &self,
        others: &LayerReader,
        extent: ExtentId,
        offset: u64,
        mut into: &mut [u8],
    ) -> Result<(), ImageError> {
        let pages = offset / PAGE_SIZE..(offset + into.len() as u64) / PAGE_SIZE;
        for piece in image::split_by_owner(&self.descriptor.extents[extent.0 as usize], pages) {
            let bytes = (piece.pages.end - piece.pages.start) * PAGE_SIZE;
            let (part, rest) = into.split_at_mut(bytes as usize);
            into = rest;
            let Some(run) = piece.inherited else {
                let read = self.read(extent, piece.pages.start * PAGE_SIZE, part);
                read.map_err(|source| ImageError::ReadMemory { source })?;
                continue;
            };
            let layer = &self.descriptor.layers[run.layer as usize];
            let there = (run.layer_page + piece.pages.start - run.first) * PAGE_SIZE;
            let failed = |cause| ImageError::ReadLayer { seed: layer.seed.clone(), cause: Box::new(cause) };
            others.read_layer(layer, run.extent, there, part).map_err(failed)?;
        }
        Ok(())
    }

    /// Returns this seed with `image` in place of the template.
    pub fn to_sealed(&self, image: Image) -> Self {
        let moved = Self::with_image(image, self.working_set.clone());
        moved.save_working_set();
        moved
    }

    /// The seed's id and token.
    pub fn key(&self) -> &Arc<SeedKey> {
        &self.key
    }

    /// The seed's descriptor.
    pub fn descriptor(&self) -> &Arc<Descriptor> {
        &self.descriptor
    }

    /// The pid of the first process's template, in this pid namespace; `None` for a seed with an image.
    pub fn template_pid(&self) -> Option<i32> {
        match &self.memory {
            SeedMemory::Template(seed_template) => seed_template.processes.first().map(|one| one.pid),
            SeedMemory::Image(_) => None,
        }
    }

    /// Whether the seed's memory is available. A template may be killed, and the template of a child ends with the
    /// child's pid namespace.
    pub fn has_memory(&self) -> bool {
        match &self.memory {
            SeedMemory::Template(seed_template) => !seed_template.processes.iter().any(ProcessTemplate::has_ended),
            SeedMemory::Image(_) => true,
        }
    }

    /// The image, if it holds the seed's memory.
    pub fn image(&self) -> Option<&Image> {
        match &self.memory {
            SeedMemory::Template(_) => None,
            SeedMemory::Image(image) => Some(image),
        }
    }

    /// The durations of the capture's phases. All zero for a seed from an image.
    pub fn times(&self) -> &CaptureTimes {
        &self.times
    }
}

impl Seed {
    /// Number of pages in the working set.
    pub fn working_set_pages(&self) -> u64 {
        self.working_set.page_count()
    }

    /// Updates the working set from a child's report.
    fn learn_working_set(&self, report: &AccessReport) {
        if self.working_set.apply_report(report, |extent, page| has_data(&self.descriptor, extent, page)) {
            self.save_working_set();
        }
    }

    /// Saves the working set next to the image, if there is an image, for the node's next daemon.
    fn save_working_set(&self) {
        let SeedMemory::Image(image) = &self.memory else { return };
        let set = self.working_set.encoded_bytes();
        if !set.is_empty()
            && let Err(error) = image.save_working_set(&set)
        {
            tracing::warn!(seed = %self.key.seed, %error, "a working set could not be saved: the node's next daemon must learn it again");
        }
    }
}

fn has_data(descriptor: &Descriptor, extent: ExtentId, page: u64) -> bool {
    descriptor.extents.get(extent.0 as usize).is_some_and(|extent| extent.has_data(page))
}

impl Region for Seed {
    fn extent_bytes(&self, extent: ExtentId) -> Option<u64> {
        if extent == ExtentId::WORKING_SET {
            return Some(self.working_set.encoded_bytes().len() as u64);
        }
        if extent == ExtentId::DESCRIPTOR {
            return Some(self.encoded_descriptor.len() as u64);
        }
        if extent == ExtentId::FILE_STATES {
            return Some(self.descriptor.file_count() as u64);
        }
        self.descriptor.extents.get(extent.0 as usize).map(|known| known.bytes)
    }

    fn read(&self, extent: ExtentId, offset: u64, into: &mut [u8]) -> io::Result<()> {
        if extent == ExtentId::WORKING_SET {
            self.working_set.read(offset, into);
            return Ok(());
        }
        if extent == ExtentId::DESCRIPTOR {
            let from = offset as usize;
            into.copy_from_slice(&self.encoded_descriptor[from..from + into.len()]);
            return Ok(());
        }
        if extent == ExtentId::FILE_STATES {
            let states = self.file_states();
            let from = offset as usize;
            into.iter_mut().zip(&states[from..]).for_each(|(byte, state)| *byte = state.to_byte());
            return Ok(());
        }
        let seed_template = match &self.memory {
            SeedMemory::Template(seed_template) => seed_template,
            SeedMemory::Image(image) => return image.read(extent, offset, into),
        };
        match self.descriptor.extents[extent.0 as usize].source {
            ExtentSource::Template { process, address } => {
                seed_template.processes[process as usize].memory.read(address + offset, into)
            }
            ExtentSource::SharedObject { object } => {
                seed_template.shared_copies[object as usize].read_at(offset, into);
                Ok(())
            }
            ExtentSource::File { version } => {
                Ok(seed_template.read_held_file(&self.descriptor, version, offset, into)?)
            }
        }
    }

    fn local_template(&self) -> Option<LocalTemplate> {
        let SeedMemory::Template(seed_template) = &self.memory else { return None };
        // A reader on this host can read only the first process's template directly. It requests the memory of other
        // processes from the owner.
        let in_template = |(index, extent): (usize, &farfork_wire::descriptor::Extent)| match extent.source {
            ExtentSource::Template { process: 0, address } => Some((ExtentId(index as u32), address)),
            ExtentSource::Template { .. } | ExtentSource::SharedObject { .. } | ExtentSource::File { .. } => None,
        };
        let template = seed_template.processes.first()?.pidfd.try_clone().ok()?;
        let extents = self.descriptor.extents.iter().enumerate().filter_map(in_template).collect();
        Some(LocalTemplate { template, extents })
    }
}

/// Returns the index of the file version that could not be copied to an image because it was changed, or is not held.
fn changed_version(error: &ImageError) -> Option<usize> {
    let ImageError::ReadMemory { source } = error else { return None };
    let HeldFileError { version, cause, .. } = source.get_ref()?.downcast_ref()?;
    match cause {
        HeldFileFailure::Changed | HeldFileFailure::NotHeld => Some(*version as usize),
        HeldFileFailure::Read(_) => None,
    }
}

/// The seeds of a node, by id.
#[derive(Debug, Default)]
pub struct SeedTable {
    seeds: RwLock<HashMap<SeedId, Arc<Seed>>>,
    /// The thread that updates working sets.
    learner: LearnerThread,
    /// Working sets of processes that had seeds on this node.
    habits: Mutex<ProcessHistory>,
}

impl SeedTable {
    /// Adds a seed, and replaces a seed with the same id. From now on, the seed is served.
    pub fn insert(&self, seed: Arc<Seed>) {
        let mut seeds = self.seeds.write().unwrap_or_else(PoisonError::into_inner);
        seeds.insert(seed.key.seed.clone(), seed);
    }

    /// Adds a seed of a process of this machine. Its working set starts with the set of the process's previous seed.
    /// Returns the key of the previous seed, which may have been dropped.
    pub fn insert_successor(&self, process: ProcessIdentity, seed: Arc<Seed>) -> Option<Arc<SeedKey>> {
        let before = self.lock_habits().add_seed(process, &seed.key, &seed.descriptor, &seed.working_set);
        self.insert(seed);
        before
    }

    fn lock_habits(&self) -> MutexGuard<'_, ProcessHistory> {
        self.habits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a seed. From now on, reads of the seed are refused. Its template ends with the last reference.
    pub fn remove(&self, id: &SeedId) -> Option<Arc<Seed>> {
        self.seeds.write().unwrap_or_else(PoisonError::into_inner).remove(id)
    }

    /// Looks up a seed.
    pub fn get(&self, id: &SeedId) -> Option<Arc<Seed>> {
        self.seeds.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }
}

impl Exporter for SeedTable {
    fn open_region(&self, seed: &SeedId, token: &Token) -> Result<Arc<dyn Region>, Refusal> {
        let known = self.get(seed).ok_or(Refusal::UnknownSeed)?;
        if known.key.token == *token { Ok(known) } else { Err(Refusal::WrongToken) }
    }

    fn deliver_message(&self, _from: &str, message: &[u8]) -> Result<(), Refusal> {
        let report = AccessReport::decode_set(message).ok_or(Refusal::NoReceiver)?;
        let lesson: Box<dyn FnOnce() + Send> = match self.get(&report.seed) {
            Some(known) if known.key.token != report.token => return Err(Refusal::WrongToken),
            Some(known) => Box::new(move || known.learn_working_set(&report)),
            // The seed may have been dropped before its child ended: then use the report for the process's next seed.
            None => {
                let habit = self.lock_habits().find_by_report(&report).ok_or(Refusal::UnknownSeed)?;
                Box::new(move || habit.apply_report(&report))
            }
        };
        if self.learner.submit(lesson) { Ok(()) } else { Err(Refusal::MessageQueueFull) }
    }
}
