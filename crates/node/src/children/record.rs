//! `child.json`: the description of a child, kept in its directory for the daemon's next start.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use farfork_fork::pager::PagerCounters;
use farfork_wire::{ChildId, PAGE_SIZE, SeedId};
use serde::{Deserialize, Serialize};

use super::{Exit, KillLimit};
use crate::network::{EgressPolicy, NetworkMode, PortMapping};

/// Name of the file in the child's directory.
const RECORD_FILE: &str = "child.json";

/// What a child is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChildRecord {
    /// Its id.
    pub(crate) id: ChildId,
    /// What it was made from.
    pub(crate) seed: SeedId,
    /// Its program and arguments.
    pub(crate) command: String,
    /// The container it lives in.
    pub(crate) container: String,
    /// Its process on the host, as `PID@TICKS`: the start time tells it from a later one of the same number.
    pub(crate) process: String,
    /// From the request to its first instruction, in microseconds.
    pub(crate) resume_us: u64,
    /// When it was started, in milliseconds since 1970.
    pub(crate) started_unix_ms: u64,
    /// When it is to be killed, in milliseconds since 1970.
    pub(crate) deadline_unix_ms: Option<u64>,
    /// The same by the clock that nobody sets, in milliseconds since the machine was started. (Older daemons did not say.)
    #[serde(default)]
    pub(crate) deadline_boot_ms: Option<u64>,
    /// What it may use of memory, in bytes. (Older daemons did not limit it; so the next one.)
    #[serde(default)]
    pub(crate) memory_bytes_max: Option<u64>,
    /// What it may use of processors, in thousandths of one.
    #[serde(default)]
    pub(crate) cpu_millicores_max: Option<u64>,
    /// How many processes and threads it may have.
    #[serde(default)]
    pub(crate) processes_max: Option<u64>,
    /// Whether it lacks what could lead out of its container. (Older daemons trusted all; so the next one.)
    #[serde(default)]
    pub(crate) untrusted: bool,
    /// Whether it is in a user namespace of its own.
    #[serde(default)]
    pub(crate) user_namespace: bool,
    /// Whether it cannot write files.
    #[serde(default)]
    pub(crate) read_only: bool,
    /// Its network. (Older daemons had private ones only.)
    #[serde(default)]
    pub(crate) network: NetworkMode,
    /// Ports of the node that lead to it.
    #[serde(default)]
    pub(crate) publish: Vec<PortMapping>,
    /// Where it gets to from its own network. (Older daemons led nobody out.)
    #[serde(default)]
    pub(crate) egress: EgressPolicy,
    /// Seeds that own pages of its seed. (Older daemons did not say.)
    #[serde(default)]
    pub(crate) inherits: Vec<SeedId>,
    /// Whether its parent had huge pages. (Older daemons did not ask.)
    #[serde(default)]
    pub(crate) wants_huge_pages: bool,
    /// Once it has ended.
    pub(crate) ended: Option<ExitRecord>,
}

/// A child's end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExitRecord {
    /// How it ended.
    pub(crate) exit: Exit,
    /// Which limit it was killed for. (Older daemons did not say.)
    #[serde(default)]
    pub(crate) limit_met: Option<KillLimit>,
    /// When, in milliseconds since 1970.
    pub(crate) unix_ms: u64,
    /// What its pager had counted.
    pub(crate) pager: Option<PagerCounters>,
}

impl ChildRecord {
    /// Writes it into the child's directory, whole or not at all, over the same child's before it ended.
    ///
    /// # Errors
    /// As writing and renaming a file.
    pub(crate) fn write(&self, directory: &Path) -> io::Result<()> {
        let (text, file) = (serde_json::to_vec(self)?, directory.join(RECORD_FILE));
        // Of one page the kernel writes all at once, whatever becomes of the daemon: there is no need for a draft, nor, for what has
        // ended, for room. What was there before is shorter, for want of an end.
        if text.len() as u64 <= PAGE_SIZE {
            return OpenOptions::new().write(true).create(true).truncate(false).open(file)?.write_all(&text);
        }
        let draft = directory.join("child.json.new");
        fs::write(&draft, text)?;
        fs::rename(&draft, file)
    }

    /// Reads it from the child's directory.
    ///
    /// # Errors
    /// As reading a file; `InvalidData` where it is no record.
    pub(crate) fn read(directory: &Path) -> io::Result<Self> {
        let text = fs::read(directory.join(RECORD_FILE))?;
        serde_json::from_slice(&text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

#[cfg(test)]
mod tests {
    use super::{ChildRecord, EgressPolicy, Exit, ExitRecord, KillLimit, NetworkMode, PagerCounters, PortMapping};
    use std::fs;

    #[test]
    fn a_record_survives_its_file() {
        let pager = PagerCounters { faults: 3, pages_fetched: 40, ..PagerCounters::default() };
        let record = ChildRecord {
            id: "n2.c00f3a96c5d217e84".parse().unwrap(),
            seed: "n1.s00f3a96c5d217e84".parse().unwrap(),
            command: "python3 job.py".to_owned(),
            container: "7f00".to_owned(),
            process: "4711@99".to_owned(),
            resume_us: 900,
            started_unix_ms: 1,
            deadline_unix_ms: None,
            deadline_boot_ms: None,
            memory_bytes_max: Some(64 << 20),
            cpu_millicores_max: None,
            processes_max: Some(20),
            untrusted: true,
            user_namespace: true,
            read_only: false,
            network: NetworkMode::Private,
            publish: vec![PortMapping { node: 8080, child: 80 }],
            egress: EgressPolicy::try_from(&["any".to_owned()][..]).unwrap(),
            inherits: vec!["n3.s00f3a96c5d217e84".parse().unwrap()],
            wants_huge_pages: true,
            ended: Some(ExitRecord {
                exit: Exit::Signal(9),
                limit_met: Some(KillLimit::Time(1500)),
                unix_ms: 2,
                pager: Some(pager),
            }),
        };
        let directory = tempfile::tempdir().unwrap();
        assert!(ChildRecord::read(directory.path()).is_err());
        let living = ChildRecord { ended: None, ..record.clone() };
        for state in [living, record.clone(), ChildRecord { command: "x".repeat(5_000), ..record }] {
            state.write(directory.path()).unwrap();
            assert_eq!(ChildRecord::read(directory.path()).unwrap(), state);
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
