//! The embedded store: one JSON file that all nodes of a cluster reach.
//!
//! A change holds an exclusive lock on `PATH.lock`, reads the file, writes a new one next to it, and renames it. A
//! reader therefore sees either the whole old version or the whole new version, without a lock. The rename is flushed
//! before a change returns.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use farfork_wire::NodeName;
use pem::Pem;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Catalog, CatalogContents, CatalogError, ClusterRecords, DamagedRecord, MemberRecord, RosterRecord, VolumeName,
    VolumeNode, VolumeRecord, record_damage, warn_of_new_damage,
};

/// The version of the file that this build reads and writes.
const FORMAT_VERSION: u32 = 1;
/// The label of the roster in PEM.
const ROSTER_TAG: &str = "FARFORK ROSTER";
/// A larger file is not a catalog. The limit bounds what a reader allocates. 10,000 volumes need 5 MB.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Interval between two reads of the file, which another node may have changed.
const READ_INTERVAL: Duration = Duration::from_millis(100);

/// A catalog in a file that all nodes of the cluster reach.
#[derive(Debug)]
pub struct FileCatalog {
    path: PathBuf,
    cached: Mutex<Option<CachedContents>>,
}

/// The contents of one version of the file.
#[derive(Debug)]
struct CachedContents {
    version: FileVersion,
    /// Kept open, so that no later version gets the same inode number.
    _file: File,
    contents: Arc<CatalogContents>,
}

/// Identifies a version of the file, as long as that version is open. Time and size detect a change in place, made by hand.
#[derive(Debug, PartialEq, Eq)]
struct FileVersion {
    device: u64,
    inode: u64,
    modified_s: i64,
    modified_ns: i64,
    bytes: u64,
}

/// The document in the file.
#[derive(Debug, Serialize, Deserialize)]
struct CatalogDocument {
    format: u32,
    /// The highest revision that any record has had. Revisions never repeat, even if a name is used again.
    last_revision: u64,
    #[serde(flatten)]
    contents: CatalogContents,
    #[serde(default)]
    cluster: ClusterDocument,
    /// The values of damaged records, and of those whose key is no name. They stay in the file.
    #[serde(skip)]
    unreadable: BTreeMap<String, Value>,
}

/// The records of the cluster itself.
#[derive(Debug, Default, Serialize, Deserialize)]
struct ClusterDocument {
    identity: Option<String>,
    members: BTreeMap<NodeName, MemberRecord>,
    roster: Option<RosterDocument>,
}

#[derive(Debug, Serialize, Deserialize)]
struct RosterDocument {
    revision: u64,
    /// PEM.
    text: String,
}

/// The part that every version of a document has.
#[derive(Deserialize)]
struct DocumentFormat {
    format: u32,
}

impl FileCatalog {
    /// A catalog at a path. The first change creates the file.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), cached: Mutex::new(None) }
    }

    /// Creates a catalog with contents.
    ///
    /// # Errors
    /// `Store` if the file exists, or cannot be written.
    pub fn create(path: &Path, contents: &CatalogContents) -> Result<(), CatalogError> {
        let last_revision = contents.volumes.values().map(|record| record.revision).max().unwrap_or(0);
        let document = CatalogDocument { last_revision, contents: contents.clone(), ..CatalogDocument::empty() };
        let catalog = Self::new(path);
        let failed = |error| catalog.store_error("create", error);
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
        catalog.replace(&document).map_err(|error| {
            // An empty file would prevent the next attempt.
            let _ = fs::remove_file(path);
            failed(error)
        })
    }

    /// Applies a change to the document, and replaces the file.
    fn change<T>(
        &self,
        apply: impl FnOnce(&mut CatalogDocument) -> Result<T, CatalogError>,
    ) -> Result<T, CatalogError> {
        let _lock = self.lock().map_err(|error| self.store_error("lock", error))?;
        let mut document = self.read_document()?;
        let result = apply(&mut document)?;
        self.replace(&document).map_err(|error| self.store_error("write", error))?;
        Ok(result)
    }

    fn lock(&self) -> io::Result<File> {
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(self.sibling("lock"))?;
        rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
        Ok(file)
    }

    fn read_document(&self) -> Result<CatalogDocument, CatalogError> {
        match self.open().map_err(|error| self.store_error("read", error))? {
            Some(file) => self.decode(&file),
            None => Ok(CatalogDocument::empty()),
        }
    }

    fn open(&self) -> io::Result<Option<File>> {
        match File::open(&self.path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The current version of the file; `None` if there is no file.
    fn present_version(&self) -> io::Result<Option<FileVersion>> {
        match fs::metadata(&self.path) {
            Ok(metadata) => Ok(Some(FileVersion::of(&metadata))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn decode(&self, file: &File) -> Result<CatalogDocument, CatalogError> {
        let text = read_limited(file).map_err(|error| self.store_error("read", error))?;
        let parse_error = |error: serde_json::Error| self.format_error(error.to_string());
        let DocumentFormat { format } = serde_json::from_slice(&text).map_err(parse_error)?;
        if format != FORMAT_VERSION {
            return Err(self.format_error(format!("it has format {format}, and this build reads {FORMAT_VERSION}")));
        }
        let mut value: Value = serde_json::from_slice(&text).map_err(parse_error)?;
        let mut stored = serde_json::Map::new();
        if let Some(volumes) = value.get_mut("volumes").and_then(Value::as_object_mut) {
            std::mem::swap(volumes, &mut stored);
        }
        let mut document: CatalogDocument = serde_json::from_value(value).map_err(parse_error)?;
        for (name, stored) in stored {
            self.decode_volume(&mut document, name, stored);
        }
        Ok(document)
    }

    /// Decodes the record of a volume. One that cannot be read concerns no other volume.
    fn decode_volume(&self, document: &mut CatalogDocument, key: String, stored: Value) {
        let (revision, name) = (stored["revision"].as_u64(), VolumeName::new(&key));
        let decoded = VolumeRecord::deserialize(&stored).map_err(|error| error.to_string());
        let decoded = decoded.and_then(|record| match record_damage(&record) {
            Some(reason) => Err(reason.to_owned()),
            None => Ok(record),
        });
        match (name, decoded) {
            (Ok(name), Ok(record)) => drop(document.contents.volumes.insert(name, record)),
            (Ok(name), Err(reason)) => {
                // 0 would mean that there is no record.
                let revision = revision.unwrap_or(document.last_revision).max(1);
                let reason = format!("`volumes.{name}` of {}: {reason}", self.path.display());
                document.contents.damaged.insert(name, DamagedRecord { revision, reason });
                document.unreadable.insert(key, stored);
            }
            (Err(_), _) => drop(document.unreadable.insert(key, stored)),
        }
    }

    /// Replaces the file atomically. The caller holds the lock. Overwrites the temporary file of a writer that died.
    fn replace(&self, document: &CatalogDocument) -> io::Result<()> {
        let (temporary, text) = (self.sibling("new"), serde_json::to_vec_pretty(&document.to_value()?)?);
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        let written = file.write_all(&text).and_then(|()| file.sync_all());
        if let Err(error) = written.and_then(|()| fs::rename(&temporary, &self.path)) {
            // On a full disk, the rest would take space.
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        File::open(self.directory())?.sync_all()
    }

    fn directory(&self) -> &Path {
        match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        }
    }

    fn sibling(&self, extension: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".");
        name.push(extension);
        name.into()
    }

    fn format_error(&self, reason: String) -> CatalogError {
        CatalogError::Format { store: self.path.display().to_string(), reason }
    }

    fn store_error(&self, operation: &'static str, source: io::Error) -> CatalogError {
        CatalogError::Store { operation, store: self.path.display().to_string(), source }
    }
}

impl Catalog for FileCatalog {
    fn read(&self) -> Result<Arc<CatalogContents>, CatalogError> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let read_error = |error| self.store_error("read", error);
        let Some(present) = self.present_version().map_err(read_error)? else { return Ok(Arc::default()) };
        if let Some(CachedContents { version, contents, .. }) = &*cached
            && *version == present
        {
            return Ok(Arc::clone(contents));
        }
        let Some(file) = self.open().map_err(read_error)? else { return Ok(Arc::default()) };
        let version = FileVersion::of(&file.metadata().map_err(read_error)?);
        let contents = Arc::new(self.decode(&file)?.contents);
        warn_of_new_damage(cached.as_ref().map(|cached| &*cached.contents), &contents);
        *cached = Some(CachedContents { version, _file: file, contents: Arc::clone(&contents) });
        Ok(contents)
    }

    fn write_volume(&self, name: &VolumeName, record: &VolumeRecord) -> Result<u64, CatalogError> {
        self.change(|document| {
            document.expect_revision(name, record.revision)?;
            document.last_revision += 1;
            let written = VolumeRecord { revision: document.last_revision, ..record.clone() };
            document.remove_volume(name);
            document.contents.volumes.insert(name.clone(), written);
            Ok(document.last_revision)
        })
    }

    fn remove_volume(&self, name: &VolumeName, revision: u64) -> Result<(), CatalogError> {
        self.change(|document| {
            document.expect_revision(name, revision)?;
            document.remove_volume(name);
            Ok(())
        })
    }

    fn register_node(&self, name: &NodeName, node: &VolumeNode) -> Result<(), CatalogError> {
        self.change(|document| {
            document.contents.nodes.insert(name.clone(), node.clone());
            Ok(())
        })
    }

    fn wait_for_change(&self) {
        thread::sleep(READ_INTERVAL);
    }

    fn read_cluster(&self) -> Result<ClusterRecords, CatalogError> {
        let ClusterDocument { identity, members, roster } = self.read_document()?.cluster;
        let decode = |roster: RosterDocument| match pem::parse(roster.text) {
            Ok(pem) => Ok(RosterRecord { revision: roster.revision, bytes: pem.into_contents() }),
            Err(error) => Err(self.format_error(format!(
                "`cluster.roster` is damaged: {error}: delete it, and a node that runs writes its roster again"
            ))),
        };
        Ok(ClusterRecords { cluster: identity, members, roster: roster.map(decode).transpose()? })
    }

    fn write_cluster(&self, cluster: &str) -> Result<String, CatalogError> {
        self.change(|document| Ok(document.cluster.identity.get_or_insert_with(|| cluster.to_owned()).clone()))
    }

    fn write_member(&self, name: &NodeName, member: &MemberRecord) -> Result<(), CatalogError> {
        self.change(|document| {
            document.cluster.members.insert(name.clone(), *member);
            Ok(())
        })
    }

    fn remove_member(&self, name: &NodeName, member: &MemberRecord) -> Result<(), CatalogError> {
        self.change(|document| {
            document.cluster.members.retain(|other, present| other != name || present != member);
            Ok(())
        })
    }

    fn write_roster(&self, roster: &RosterRecord) -> Result<bool, CatalogError> {
        self.change(|document| {
            let present = document.cluster.roster.as_ref().map_or(0, |present| present.revision);
            if present == roster.revision {
                document.last_revision += 1;
                let (revision, text) =
                    (document.last_revision, pem::encode(&Pem::new(ROSTER_TAG, roster.bytes.clone())));
                document.cluster.roster = Some(RosterDocument { revision, text });
            }
            Ok(present == roster.revision)
        })
    }
}

impl CatalogDocument {
    fn empty() -> Self {
        let (contents, cluster) = (CatalogContents::default(), ClusterDocument::default());
        Self { format: FORMAT_VERSION, last_revision: 0, contents, cluster, unreadable: BTreeMap::new() }
    }

    /// The document of the file, with the records that cannot be read.
    fn to_value(&self) -> serde_json::Result<Value> {
        let mut value = serde_json::to_value(self)?;
        for (name, stored) in &self.unreadable {
            value["volumes"][name] = stored.clone();
        }
        Ok(value)
    }

    fn remove_volume(&mut self, name: &VolumeName) {
        self.contents.volumes.remove(name);
        self.contents.damaged.remove(name);
        self.unreadable.remove(name.as_str());
    }

    /// Checks that a record still has the revision that was read.
    fn expect_revision(&self, name: &VolumeName, revision: u64) -> Result<(), CatalogError> {
        let damaged = self.contents.damaged.get(name).map(|record| record.revision);
        let present = damaged.or_else(|| Some(self.contents.volumes.get(name)?.revision)).unwrap_or(0);
        if present == revision { Ok(()) } else { Err(CatalogError::Conflict(name.clone())) }
    }
}

impl FileVersion {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            modified_s: metadata.mtime(),
            modified_ns: metadata.mtime_nsec(),
            bytes: metadata.len(),
        }
    }
}

fn read_limited(file: &File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests;
