//! `child.json`: the description of a child, kept in its directory for the daemon's next start.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use farfork_fork::pager::PagerCounters;
use farfork_wire::{ChildId, PAGE_SIZE, SeedId};
use serde::{Deserialize, Serialize};

use super::{Exit, KillLimit};
use crate::clock::Timestamp;
use crate::network::{EgressPolicy, NetworkMode, PortMapping};

/// Name of the file in the child's directory.
const RECORD_FILE: &str = "child.json";

/// The description of a child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChildRecord {
    /// Its id.
    pub(crate) id: ChildId,
    /// The seed that it was made from.
    pub(crate) seed: SeedId,
    /// Its program and arguments.
    pub(crate) command: String,
    /// Its container.
    pub(crate) container: String,
    /// Its process on the host, as `PID@TICKS`. TICKS is the start time: it distinguishes the process from a later one
    /// with the same pid.
    pub(crate) process: String,
    /// Time from the request to its first instruction, in microseconds.
    pub(crate) resume_us: u64,
    /// When it was started, in milliseconds since 1970.
    pub(crate) started_unix_ms: u64,
    /// When it was started, in milliseconds since boot. (Absent in records of older daemons.)
    #[serde(default)]
    pub(crate) started_boot_ms: Option<u64>,
    /// Its deadline, in milliseconds since 1970.
    pub(crate) deadline_unix_ms: Option<u64>,
    /// Its deadline in milliseconds since boot, by a clock that is never set. (Absent in records of older daemons.)
    #[serde(default)]
    pub(crate) deadline_boot_ms: Option<u64>,
    /// Its memory limit, in bytes. (Absent in records of older daemons, which set none.)
    #[serde(default)]
    pub(crate) memory_bytes_max: Option<u64>,
    /// Its CPU limit, in thousandths of a processor.
    #[serde(default)]
    pub(crate) cpu_millicores_max: Option<u64>,
    /// Its limit of processes and threads.
    #[serde(default)]
    pub(crate) processes_max: Option<u64>,
    /// Whether it is an untrusted child, which cannot leave its container. (Absent in records of older daemons, which
    /// trusted all.)
    #[serde(default)]
    pub(crate) untrusted: bool,
    /// Whether it has its own user namespace.
    #[serde(default)]
    pub(crate) user_namespace: bool,
    /// Whether its files are read-only.
    #[serde(default)]
    pub(crate) read_only: bool,
    /// The directory of the node that is its root. (Absent if that is the node's root.)
    #[serde(default)]
    pub(crate) root: Option<String>,
    /// Its network mode. (Absent in records of older daemons, which had private networks only.)
    #[serde(default)]
    pub(crate) network: NetworkMode,
    /// Ports of the node that are forwarded to it.
    #[serde(default)]
    pub(crate) publish: Vec<PortMapping>,
    /// The destinations that it can reach from its own network. (Absent in records of older daemons, which allowed none.)
    #[serde(default)]
    pub(crate) egress: EgressPolicy,
    /// Seeds that own pages of its seed. (Absent in records of older daemons.)
    #[serde(default)]
    pub(crate) inherits: Vec<SeedId>,
    /// Whether its parent had huge pages. (Absent in records of older daemons.)
    #[serde(default)]
    pub(crate) wants_huge_pages: bool,
    /// Its end, once it has ended.
    pub(crate) ended: Option<ExitRecord>,
}

/// A child's end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExitRecord {
    /// How it ended.
    pub(crate) exit: Exit,
    /// The limit that it was killed for. (Absent in records of older daemons.)
    #[serde(default)]
    pub(crate) limit_met: Option<KillLimit>,
    /// Whether the program that forked it killed it. (Absent in records of older daemons.)
    #[serde(default)]
    pub(crate) by_program: bool,
    /// Time of the end, in milliseconds since 1970.
    pub(crate) unix_ms: u64,
    /// The pager's counters for it.
    pub(crate) pager: Option<PagerCounters>,
}

impl ChildRecord {
    /// When the child was started.
    pub(crate) fn started(&self) -> Timestamp {
        Timestamp { unix_ms: self.started_unix_ms, boot_ms: self.started_boot_ms }
    }

    /// Writes the record into the child's directory, atomically. When the child ends, the record is replaced.
    ///
    /// # Errors
    /// As writing and renaming a file.
    pub(crate) fn write(&self, directory: &Path) -> io::Result<()> {
        let (text, file) = (serde_json::to_vec(self)?, directory.join(RECORD_FILE));
        // The kernel writes one page as a whole, even if the daemon is killed. So a small record needs no draft. The
        // old record is shorter, because it contains no end. So it is overwritten without truncation, and the file
        // keeps its disk space for the end.
        if text.len() as u64 <= PAGE_SIZE {
            return OpenOptions::new().write(true).create(true).truncate(false).open(file)?.write_all(&text);
        }
        let draft = directory.join("child.json.new");
        fs::write(&draft, text)?;
        fs::rename(&draft, file)
    }

    /// Reads the record from the child's directory.
    ///
    /// # Errors
    /// As reading a file; `InvalidData` if the file is not a valid record.
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
    fn a_child_record_is_read_back() {
        let pager = PagerCounters { faults: 3, pages_fetched: 40, ..PagerCounters::default() };
        let record = ChildRecord {
            id: "n2.c00f3a96c5d217e84".parse().unwrap(),
            seed: "n1.s00f3a96c5d217e84".parse().unwrap(),
            command: "python3 job.py".to_owned(),
            container: "7f00".to_owned(),
            process: "4711@99".to_owned(),
            resume_us: 900,
            started_unix_ms: 1,
            started_boot_ms: Some(3),
            deadline_unix_ms: None,
            deadline_boot_ms: None,
            memory_bytes_max: Some(64 << 20),
            cpu_millicores_max: None,
            processes_max: Some(20),
            untrusted: true,
            user_namespace: true,
            read_only: false,
            root: Some("/srv/image".to_owned()),
            network: NetworkMode::Private,
            publish: vec![PortMapping { node: 8080, child: 80 }],
            egress: EgressPolicy::try_from(&["any".to_owned()][..]).unwrap(),
            inherits: vec!["n3.s00f3a96c5d217e84".parse().unwrap()],
            wants_huge_pages: true,
            ended: Some(ExitRecord {
                exit: Exit::Signal(9),
                limit_met: Some(KillLimit::Time(1500)),
                by_program: true,
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
