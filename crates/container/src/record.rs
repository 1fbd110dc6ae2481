//! A file for each container in the run directory, so that what a daemon leaves behind when it dies can be found and
//! told from what others made. Its name says whether something runs in the container that outlives the daemon, so that
//! handing one over costs no more than a rename.
//!
//! ```text
//! RUN/containers/ID.waiting     contents: the init, as PID@TICKS
//! RUN/containers/ID.in-use
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use farfork_sys::identity::ProcessIdentity;

use crate::error::ContainerError;

/// Whether something runs in a container that outlives the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Its init waits; it ends with the daemon.
    Waiting,
    /// It was handed over; it ends with what runs in it.
    InUse,
}

/// What is written down of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) id: String,
    pub(crate) used: Use,
    pub(crate) init: ProcessIdentity,
}

/// Writes down a new container.
pub(crate) fn create(directory: &Path, id: &str, init: &ProcessIdentity) -> Result<(), ContainerError> {
    let path = file(directory, id, Use::Waiting);
    fs::write(&path, init.to_string()).map_err(|cause| ContainerError::Record { path, cause })
}

/// Writes down that a container is in use from now on.
pub(crate) fn hand_over(directory: &Path, id: &str) -> Result<(), ContainerError> {
    let path = file(directory, id, Use::Waiting);
    fs::rename(&path, file(directory, id, Use::InUse)).map_err(|cause| ContainerError::Record { path, cause })
}

/// Removes the record of a container; none is no error.
pub(crate) fn remove(directory: &Path, id: &str, used: Use) {
    let _ = fs::remove_file(file(directory, id, used));
}

/// All records. A file that is none (of a daemon that died while it wrote) is removed.
pub(crate) fn read_all(directory: &Path) -> Result<Vec<Record>, ContainerError> {
    let error = |cause| ContainerError::Record { path: directory.to_owned(), cause };
    let entries = match fs::read_dir(directory) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(error)?,
    };
    let mut records = Vec::new();
    for entry in entries {
        let path = entry.map_err(error)?.path();
        match read(&path) {
            Some(record) => records.push(record),
            None => {
                let _ = fs::remove_file(&path);
            }
        }
    }
    Ok(records)
}

fn read(path: &Path) -> Option<Record> {
    let used =
        [Use::Waiting, Use::InUse].into_iter().find(|used| path.extension().is_some_and(|e| e == used.word()))?;
    let init = fs::read_to_string(path).ok()?.parse().ok()?;
    Some(Record { id: path.file_stem()?.to_str()?.to_owned(), used, init })
}

impl Use {
    fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::InUse => "in-use",
        }
    }
}

fn file(directory: &Path, id: &str, used: Use) -> PathBuf {
    directory.join(format!("{id}.{}", used.word()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let init = ProcessIdentity { pid: 7, start_ticks: 9 };
        create(directory.path(), "one", &init).unwrap();
        create(directory.path(), "two", &init).unwrap();
        hand_over(directory.path(), "two").unwrap();
        fs::write(directory.path().join("three.waiting"), "").unwrap();
        let mut found = read_all(directory.path()).unwrap();
        found.sort_by(|a, b| a.id.cmp(&b.id));
        let record = |id: &str, used| Record { id: id.to_owned(), used, init };
        assert_eq!(found, [record("one", Use::Waiting), record("two", Use::InUse)]);
        remove(directory.path(), "one", Use::Waiting);
        remove(directory.path(), "two", Use::InUse);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        assert!(hand_over(directory.path(), "two").is_err());
    }
}
