//! A file for each container in the run directory, so that what a daemon leaves behind when it dies can be found and
//! told from what others made.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use farfork_sys::identity::ProcessIdentity;
use serde::{Deserialize, Serialize};

use crate::error::ContainerError;

/// What is written down of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Its id.
    pub(crate) id: String,
    /// Its init, as [`ProcessIdentity`] writes itself.
    pub(crate) init: String,
    /// Whether something runs in it that outlives the daemon.
    pub(crate) in_use: bool,
}

impl Record {
    /// Writes the record, whole or not at all.
    pub(crate) fn write(&self, directory: &Path) -> Result<(), ContainerError> {
        let path = file(directory, &self.id);
        let draft = path.with_extension("new");
        let text = serde_json::to_vec(self).map_err(io::Error::other);
        text.and_then(|text| fs::write(&draft, text))
            .and_then(|()| fs::rename(&draft, &path))
            .map_err(|cause| ContainerError::Record { path, cause })
    }

    /// Init, where the record holds a well-formed one.
    pub(crate) fn init(&self) -> Option<ProcessIdentity> {
        self.init.parse().ok()
    }
}

/// Removes a record; none is no error.
pub(crate) fn remove(directory: &Path, id: &str) {
    let _ = fs::remove_file(file(directory, id));
}

/// All records; a file that is none (a draft that was never finished) is removed.
pub(crate) fn read_all(directory: &Path) -> Result<Vec<Record>, ContainerError> {
    let error = |cause| ContainerError::Record { path: directory.to_owned(), cause };
    let entries = match fs::read_dir(directory) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(error)?,
    };
    let mut records = Vec::new();
    for entry in entries {
        let path = entry.map_err(error)?.path();
        match fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok()) {
            Some(record) => records.push(record),
            None => {
                let _ = fs::remove_file(&path);
            }
        }
    }
    Ok(records)
}

fn file(directory: &Path, id: &str) -> PathBuf {
    directory.join(format!("{id}.json"))
}
