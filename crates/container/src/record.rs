//! A file per container in the run directory. A later daemon finds a dead daemon's containers by these files, and
//! distinguishes them from those of other programs. The file's name shows whether a process in the container outlives the
//! daemon, so handing a container over costs only a rename.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use farfork_sys::process_identity::ProcessIdentity;

use crate::error::ContainerError;

//  RUN/containers/ID.waiting     contents: the init, as PID@TICKS
//  RUN/containers/ID.in-use

/// Whether a process in a container outlives the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordState {
    /// The container waits in the pool. It ends with the daemon.
    Waiting,
    /// The container was handed over. It ends with its own processes.
    InUse,
}

/// The contents of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerRecord {
    pub(crate) id: String,
    pub(crate) state: RecordState,
    pub(crate) init: ProcessIdentity,
}

/// Writes the record of a new container.
pub(crate) fn write_record(directory: &Path, id: &str, init: &ProcessIdentity) -> Result<(), ContainerError> {
    let path = record_path(directory, id, RecordState::Waiting);
    fs::write(&path, init.to_string()).map_err(|cause| ContainerError::Record { path, cause })
}

/// Renames the record of a container that is in use from now on.
pub(crate) fn mark_in_use(directory: &Path, id: &str) -> Result<(), ContainerError> {
    let path = record_path(directory, id, RecordState::Waiting);
    fs::rename(&path, record_path(directory, id, RecordState::InUse))
        .map_err(|cause| ContainerError::Record { path, cause })
}

/// Removes the record of a container. A missing record is not an error.
pub(crate) fn remove_record(directory: &Path, id: &str, used: RecordState) {
    let _ = fs::remove_file(record_path(directory, id, used));
}

/// Reads all complete records.
pub(crate) fn read_records(directory: &Path) -> Result<Vec<ContainerRecord>, ContainerError> {
    Ok(record_files(directory)?.iter().filter_map(|path| read_record(path)).collect())
}

/// Like [`read_records`], but removes incomplete records: a daemon died while it wrote them. No daemon may write records at
/// the same time.
pub(crate) fn read_leftover_records(directory: &Path) -> Result<Vec<ContainerRecord>, ContainerError> {
    let read_or_remove = |path: &PathBuf| {
        let record = read_record(path);
        if record.is_none() {
            let _ = fs::remove_file(path);
        }
        record
    };
    Ok(record_files(directory)?.iter().filter_map(read_or_remove).collect())
}

fn record_files(directory: &Path) -> Result<Vec<PathBuf>, ContainerError> {
    let error = |cause| ContainerError::Record { path: directory.to_owned(), cause };
    match fs::read_dir(directory) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries.map_err(error)?.map(|entry| Ok(entry.map_err(error)?.path())).collect(),
    }
}

fn read_record(path: &Path) -> Option<ContainerRecord> {
    let used = [RecordState::Waiting, RecordState::InUse]
        .into_iter()
        .find(|used| path.extension().is_some_and(|e| e == used.suffix()))?;
    let init = fs::read_to_string(path).ok()?.parse().ok()?;
    Some(ContainerRecord { id: path.file_stem()?.to_str()?.to_owned(), state: used, init })
}

impl RecordState {
    fn suffix(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::InUse => "in-use",
        }
    }
}

fn record_path(directory: &Path, id: &str, used: RecordState) -> PathBuf {
    directory.join(format!("{id}.{}", used.suffix()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_back_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let init = ProcessIdentity { pid: 7, start_ticks: 9 };
        write_record(directory.path(), "one", &init).unwrap();
        write_record(directory.path(), "two", &init).unwrap();
        mark_in_use(directory.path(), "two").unwrap();
        fs::write(directory.path().join("three.waiting"), "").unwrap();
        assert_eq!(read_records(directory.path()).unwrap().len(), 2);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3);
        let mut found = read_leftover_records(directory.path()).unwrap();
        found.sort_by(|a, b| a.id.cmp(&b.id));
        let record = |id: &str, used| ContainerRecord { id: id.to_owned(), state: used, init };
        assert_eq!(found, [record("one", RecordState::Waiting), record("two", RecordState::InUse)]);
        remove_record(directory.path(), "one", RecordState::Waiting);
        remove_record(directory.path(), "two", RecordState::InUse);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        assert!(mark_in_use(directory.path(), "two").is_err());
    }
}
