//! Seals seeds: copies their memory, including inherited pages, to an image in the background. The image replaces the
//! template, and outlives this daemon and all seeds from which the seed inherits.
//!
//! A starting daemon serves the images of its node before any page can be requested. A damaged image is not served:
//! requests for its seed fail with the reason. The file stays for inspection until its seed is dropped.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use farfork_api::v1;
use farfork_fork::image::{Image, ImageError, ImageProgress, working_set_path};
use farfork_fork::resume::LayerReader;
use farfork_fork::seed::{Seed, SeedTable};
use farfork_sys::companion;
use farfork_wire::{NodeName, SeedId};
use serde::{Deserialize, Serialize};

use super::budget::MemoryCharge;
use super::completion::SeedCompletion;
use super::lease::Lease;
use super::{SeedEntry, SeedRegistry};
use crate::clock::Timestamp;
use crate::node::Node;

/// Suffix of an image file, after the seed's id.
const IMAGE_SUFFIX: &str = ".image";

/// Suffix of a working set file, next to the image.
const WORKING_SET_SUFFIX: &str = ".set";

/// Suffixes of files that are being written.
const TEMPORARY_SUFFIXES: [&str; 2] = [".image.new", ".set.new"];

/// nice(2) increment of a thread that writes an image: children and parents have priority.
const NICENESS: i32 = 10;

/// The data that a restarted daemon needs about a seed, in addition to the descriptor.
#[derive(Debug, Serialize, Deserialize)]
struct SealMetadata {
    name: String,
    parent_pid: u32,
    command: String,
    created_unix_ms: u64,
    expires_unix_ms: u64,
    threads: u32,
    memory_bytes: u64,
    descriptor_bytes: u64,
    pause_us: u64,
    prepare_us: u64,
    /// Images of older daemons lack this field and the following ones.
    #[serde(default)]
    ttl_ms: u64,
    #[serde(default)]
    labels: HashMap<String, String>,
    #[serde(default)]
    notes: Vec<String>,
    #[serde(default)]
    processes: u32,
}

/// The state of a seed's sealing.
///
/// ```text
///  listed, underway ─┬─▶ sealed: served from the image; the template ends, a frozen parent goes on
///                    └─▶ failed: served from the template, as any seed
/// ```
#[derive(Debug)]
pub(super) enum SealProgress {
    /// The image is being written.
    Underway(Arc<ImageProgress>),
    /// The image has the seed's memory.
    Sealed {
        /// Path of the image.
        path: PathBuf,
        /// Size of the memory in the image, in bytes.
        bytes: u64,
    },
    /// Sealing failed, for this reason. There is no image.
    Failed(String),
}

/// The images that a starting daemon has found.
#[derive(Debug)]
pub(crate) struct LoadedImages {
    pub(super) directory: PathBuf,
    pub(super) listed: BTreeMap<SeedId, SeedEntry>,
    /// Images that cannot be used, with the reason.
    pub(super) refused: BTreeMap<SeedId, ImageError>,
}

impl SealProgress {
    /// Converts the state for the API.
    pub(super) fn view(&self) -> v1::Seal {
        let seal = |state: v1::SealState, (done_bytes, total_bytes), failure: &str, image: String| v1::Seal {
            state: state.into(),
            done_bytes,
            total_bytes,
            failure: failure.to_owned(),
            image,
        };
        match self {
            Self::Underway(progress) => seal(v1::SealState::Sealing, progress.bytes(), "", String::new()),
            Self::Sealed { path, bytes } => {
                seal(v1::SealState::Sealed, (*bytes, *bytes), "", path.display().to_string())
            }
            Self::Failed(reason) => seal(v1::SealState::Failed, (0, 0), reason, String::new()),
        }
    }
}

/// Loads the images of a node's seeds into the table of served seeds. Removes incomplete files, and working sets
/// without an image.
pub(crate) fn load_images(directory: PathBuf, node: &NodeName, table: &SeedTable) -> LoadedImages {
    let (mut listed, mut refused) = (BTreeMap::new(), BTreeMap::new());
    for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let id = |suffix| name.strip_suffix(suffix)?.parse::<SeedId>().ok().filter(|id| id.node() == node);
        let is_left = |image: SeedId| !directory.join(format!("{image}{IMAGE_SUFFIX}")).exists();
        if TEMPORARY_SUFFIXES.into_iter().find_map(id).is_some() || id(WORKING_SET_SUFFIX).is_some_and(is_left) {
            let _ = fs::remove_file(&path);
        } else if let Some(id) = id(IMAGE_SUFFIX) {
            match open_image(&path, &id) {
                Ok((image, entry)) => {
                    tracing::info!(seed = %id, image = %path.display(), "a sealed seed is served again");
                    table.insert(Arc::new(Seed::from_image(image)));
                    listed.insert(id, entry);
                }
                Err(error) => {
                    tracing::error!(seed = %id, %error, "a sealed seed is not served");
                    refused.insert(id, error);
                }
            }
        }
    }
    LoadedImages { directory, listed, refused }
}

fn open_image(path: &Path, id: &SeedId) -> Result<(Image, SeedEntry), ImageError> {
    let image = Image::open(path)?;
    let damaged = |what: String| ImageError::Corrupt { path: path.to_owned(), what };
    if image.head().seed != *id {
        return Err(damaged(format!("it belongs to seed {}", image.head().seed)));
    }
    let about: SealMetadata =
        serde_json::from_slice(&image.head().daemon_state).map_err(|error| damaged(error.to_string()))?;
    let seed_completion = Arc::new(SeedCompletion::default());
    seed_completion.complete(Ok(()));
    let seal = Some(SealProgress::Sealed { path: path.to_owned(), bytes: about.memory_bytes });
    // An image of an older daemon has an expiry time but no time to live. Use 1 ms: 0 would mean no lease.
    let ttl_ms = if about.expires_unix_ms > 0 { about.ttl_ms.max(1) } else { 0 };
    let lease = Lease::from_image(ttl_ms, about.expires_unix_ms);
    Ok((
        image,
        SeedEntry {
            view: about.into_view(id),
            created_boot_ms: None,
            completion: seed_completion,
            lease,
            seal_progress: seal,
            memory_charge: MemoryCharge::default(),
        },
    ))
}

/// Writes the image of a complete seed, in a separate thread.
pub(super) fn start_sealing(node: &Arc<Node>, id: &SeedId) {
    let (task_node, sealed) = (node.clone(), id.clone());
    let work = move || write_image(&task_node.seeds, task_node.engine.other_seeds(), &sealed);
    let started = companion::spawn_in_owner(thread::Builder::new().name("sealer".to_owned()), work);
    if let Err(error) = started {
        node.seeds.set_seal_progress(id, SealProgress::Failed(format!("cannot start a thread for it: {error}")));
    }
}

fn write_image(seeds: &SeedRegistry, others: &LayerReader, id: &SeedId) {
    // If nice(2) fails, the thread runs with normal priority.
    let _ = rustix::process::nice(NICENESS);
    let (Some(seed), Some((about, progress))) = (seeds.table.get(id), seeds.seal_metadata(id)) else { return };
    let path = seeds.image_path(id);
    // The directory may exist. If it cannot be created, writing the image fails with that error.
    let _ = DirBuilder::new().recursive(true).mode(0o700).create(&seeds.images_dir);
    match seed.seal(others, about, &path, &progress) {
        Ok(image) => seeds.switch_to_image(id, seed.to_sealed(image)),
        Err(ImageError::Cancelled { .. }) => {}
        Err(error) => {
            tracing::warn!(seed = %id, %error, "cannot seal a seed");
            seeds.set_seal_progress(id, SealProgress::Failed(error.to_string()));
        }
    }
    // Drop the seed last: if this is the last reference, dropping it ends the template, and may take long.
    drop(seed);
}

impl SeedRegistry {
    pub(super) fn image_path(&self, id: &SeedId) -> PathBuf {
        self.images_dir.join(format!("{id}{IMAGE_SUFFIX}"))
    }

    fn set_seal_progress(&self, id: &SeedId, seal: SealProgress) {
        if let Some(known) = self.entries().get_mut(id) {
            known.seal_progress = Some(seal);
        }
    }

    /// Returns the metadata for the image, and the object for its progress; `None` if the seed was dropped.
    fn seal_metadata(&self, id: &SeedId) -> Option<(Vec<u8>, Arc<ImageProgress>)> {
        let listed = self.entries();
        let known = listed.get(id)?;
        let Some(SealProgress::Underway(progress)) = &known.seal_progress else { return None };
        Some((serde_json::to_vec(&SealMetadata::from_view(&known.to_view(Timestamp::now()))).ok()?, progress.clone()))
    }

    /// Serves the seed from its image from now on.
    fn switch_to_image(&self, id: &SeedId, seed: Seed) {
        let path = self.image_path(id);
        let mut listed = self.entries();
        let Some(known) = listed.get_mut(id) else {
            // The seed was dropped during sealing.
            return remove_image(&path);
        };
        known.view.frozen = false;
        known.view.inherits.clear();
        known.seal_progress = Some(SealProgress::Sealed { path, bytes: known.view.memory_bytes });
        self.table.insert(Arc::new(seed));
        tracing::info!(seed = %id, "sealed");
    }
}

/// Discards a seal: removes the image, or cancels its writing.
pub(super) fn discard_image(seal: &SealProgress) {
    match seal {
        SealProgress::Underway(progress) => progress.cancel(),
        SealProgress::Sealed { path, .. } => remove_image(path),
        SealProgress::Failed(_) => {}
    }
}

/// Removes an image and its working set.
pub(super) fn remove_image(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(image = %path.display(), %error, "cannot remove an image");
    }
    // Before the first child, there is no working set.
    let _ = fs::remove_file(working_set_path(path));
}

impl SealMetadata {
    fn from_view(view: &v1::Seed) -> Self {
        Self {
            name: view.name.clone(),
            parent_pid: view.parent_pid,
            command: view.command.clone(),
            created_unix_ms: view.created_unix_ms,
            expires_unix_ms: view.expires_unix_ms,
            threads: view.threads,
            memory_bytes: view.memory_bytes,
            descriptor_bytes: view.descriptor_bytes,
            pause_us: view.pause_us,
            prepare_us: view.prepare_us,
            ttl_ms: view.ttl_ms,
            labels: view.labels.clone(),
            notes: view.notes.clone(),
            processes: view.processes,
        }
    }

    fn into_view(self, id: &SeedId) -> v1::Seed {
        v1::Seed {
            id: id.to_string(),
            name: self.name,
            node: id.node().to_string(),
            parent_pid: self.parent_pid,
            command: self.command,
            created_unix_ms: self.created_unix_ms,
            threads: self.threads,
            memory_bytes: self.memory_bytes,
            descriptor_bytes: self.descriptor_bytes,
            pause_us: self.pause_us,
            prepare_us: self.prepare_us,
            ttl_ms: self.ttl_ms,
            labels: self.labels,
            notes: self.notes,
            processes: self.processes,
            ..v1::Seed::default()
        }
    }
}
