//! Attributes that few processes or open files have. A descriptor lists only those that have one; all others have the defaults.

use serde::{Deserialize, Serialize};

use super::validate::require;
use super::{DescendantProcess, Descriptor, FileStatus, InvalidDescriptor, OpenFile};

/// Maximum number of entries of a local descriptor table.
const LDT_ENTRIES_MAX: u32 = 8192;

/// Number of words of a set of NUMA nodes: the kernel supports at most 1024 nodes on x86-64.
pub const NUMA_NODE_WORDS: usize = 1024 / 64;

/// PR_MCE_KILL_DEFAULT, the highest policy of PR_MCE_KILL.
pub const MCE_KILL_DEFAULT: u32 = 2;

/// Attributes of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessAttributes {
    /// Number of the process in its tree.
    pub process: u32,
    /// Whether all its memory may be merged with equal pages (PR_SET_MEMORY_MERGE).
    pub merges_memory: bool,
    /// The memory that a core dump has (`coredump_filter`, core(5)), if it is not the default.
    pub core_filter: Option<u32>,
    /// Its local descriptor table (modify_ldt(2)), ascending by number, without empty entries.
    pub local_descriptors: Vec<LocalDescriptor>,
    /// Attributes of its threads. Threads without such attributes are absent.
    pub threads: Vec<ThreadAttributes>,
}

/// An entry of a local descriptor table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalDescriptor {
    /// Index in the table.
    pub number: u32,
    /// The segment descriptor as the processor reads it.
    pub segment: u64,
}

/// Attributes of one thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadAttributes {
    /// Id of the thread in the innermost pid namespace.
    pub tid: u32,
    /// I/O priority (ioprio_get(2)); 0 for none.
    pub io_priority: u32,
    /// PR_MCE_KILL_GET, if it is not the default.
    pub mce_kill: Option<u32>,
    /// PR_GET_IO_FLUSHER.
    pub is_io_flusher: bool,
    /// Memory policy (get_mempolicy(2)), if it is not the default.
    pub memory_policy: Option<MemoryPolicy>,
    /// Syscall User Dispatch, if it is on.
    pub user_dispatch: Option<UserDispatch>,
}

/// The NUMA policy for memory that a thread allocates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPolicy {
    /// MPOL_* mode and flags.
    pub mode: u32,
    /// The set of nodes; bit N of word M is node 64 × M + N.
    pub nodes: Vec<u64>,
}

/// A configuration of Syscall User Dispatch (prctl(2), PR_SET_SYSCALL_USER_DISPATCH).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserDispatch {
    /// PR_SYS_DISPATCH_*.
    pub mode: u64,
    /// Address of the byte that allows or blocks calls.
    pub selector: u64,
    /// Start of the range of instructions with another rule.
    pub offset: u64,
    /// Length of this range, in bytes.
    pub bytes: u64,
}

/// Attributes of one pipe or socket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFileAttributes {
    /// Index of the open file.
    pub open_file: u32,
    /// Mode and owner of its inode, if they are not the defaults of a file that root has created.
    pub status: Option<FileStatus>,
    /// The credentials that SO_PEERCRED and SO_PEERGROUPS return. For a connection that waits to be accepted: those that
    /// its accepted end will return. `None` if the kernel has recorded none.
    pub peer: Option<PeerCredentials>,
    /// Whether the socket must still report ECONNREFUSED.
    pub is_refused: bool,
    /// Memory that the kernel accounts for the data that a Unix stream has sent and its peer has not read, in bytes.
    pub sent_memory_bytes: u32,
    /// The buffers of a pipe with unread bytes, in order. Empty if one write(2) of these bytes makes the same buffers.
    pub pipe_buffers: Vec<PipeBuffer>,
}

/// A buffer of a pipe. It is encoded as a number: the length, and a bit for a packet. Version 30 has no packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "u32", into = "u32")]
pub struct PipeBuffer {
    /// Number of unread bytes, a page at most.
    pub length: u32,
    /// Whether the bytes are a packet of a writer in packet mode (O_DIRECT): a read(2) ends with them, and drops those that
    /// do not fit.
    pub is_packet: bool,
}

/// The bit of a packet in an encoded [`PipeBuffer`].
const PACKET_BIT: u32 = 1 << 31;

impl From<u32> for PipeBuffer {
    fn from(encoded: u32) -> Self {
        Self { length: encoded & !PACKET_BIT, is_packet: encoded & PACKET_BIT != 0 }
    }
}

impl From<PipeBuffer> for u32 {
    fn from(buffer: PipeBuffer) -> Self {
        buffer.length | if buffer.is_packet { PACKET_BIT } else { 0 }
    }
}

/// Credentials of a process when it created a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerCredentials {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// Number of supplementary groups of a process, at most (NGROUPS_MAX).
const GROUPS_MAX: usize = 65_536;

impl OpenFileAttributes {
    /// Whether all attributes have their defaults.
    pub fn is_default(&self) -> bool {
        *self == Self { open_file: self.open_file, ..Self::default() }
    }

    fn validate(&self, file: &OpenFile) -> Result<(), InvalidDescriptor> {
        // chown(2) and setresuid(2) take this id for no change.
        const NO_ID: u32 = u32::MAX;
        let ids = self.status.iter().flat_map(|status| [status.uid, status.gid]);
        let peers = self.peer.iter().flat_map(|peer| [peer.uid, peer.gid]);
        let is_valid = matches!(file, OpenFile::Pipe { .. } | OpenFile::Socket(_))
            && ids.chain(peers).all(|id| id != NO_ID)
            && self.peer.as_ref().is_none_or(|peer| peer.groups.len() <= GROUPS_MAX);
        require(is_valid, || format!("the attributes of open file {} are invalid", self.open_file))
    }
}

impl ProcessAttributes {
    /// Whether all attributes have their defaults.
    pub fn is_default(&self) -> bool {
        *self == Self { process: self.process, ..Self::default() }
    }
}

impl ThreadAttributes {
    /// Whether all attributes have their defaults.
    pub fn is_default(&self) -> bool {
        *self == Self { tid: self.tid, ..Self::default() }
    }
}

impl Descriptor {
    /// The attributes of the first process, if it has any.
    pub fn own_attributes(&self) -> Option<&ProcessAttributes> {
        self.attributes.iter().find(|attributes| attributes.process == 0)
    }

    /// The attributes of a descendant, if it has any.
    pub fn attributes_of(&self, member: &DescendantProcess) -> Option<&ProcessAttributes> {
        let index = self.descendants.iter().position(|other| other.process.pid == member.process.pid)?;
        self.attributes.iter().find(|attributes| attributes.process == index as u32 + 1)
    }

    /// The attributes of a thread of the first process, if it has any.
    pub fn thread_attributes(&self, tid: u32) -> Option<&ThreadAttributes> {
        self.own_attributes()?.threads.iter().find(|attributes| attributes.tid == tid)
    }

    /// The attributes of an open file, if it has any.
    pub fn attributes_of_file(&self, open_file: u32) -> Option<&OpenFileAttributes> {
        let index = self.open_file_attributes.binary_search_by_key(&open_file, |attributes| attributes.open_file);
        Some(&self.open_file_attributes[index.ok()?])
    }

    pub(super) fn validate_attributes(&self) -> Result<(), InvalidDescriptor> {
        let mut lowest = 0;
        for attributes in &self.attributes {
            let ProcessAttributes { process, .. } = *attributes;
            let is_known = process >= lowest && (process as usize) < self.process_count();
            require(is_known, || format!("attributes of process {process} are out of order, or it is missing"))?;
            attributes.validate()?;
            lowest = process + 1;
        }
        let mut lowest = 0;
        for attributes in &self.open_file_attributes {
            let index = attributes.open_file;
            let file = self.open_files.get(index as usize).filter(|_| index >= lowest);
            attributes.validate(file.ok_or_else(|| InvalidDescriptor {
                reason: format!("attributes of open file {index} are out of order, or it is missing"),
            })?)?;
            lowest = index + 1;
        }
        Ok(())
    }
}

impl ProcessAttributes {
    fn validate(&self) -> Result<(), InvalidDescriptor> {
        let mut lowest = 0;
        for LocalDescriptor { number, .. } in &self.local_descriptors {
            require((lowest..LDT_ENTRIES_MAX).contains(number), || {
                format!("local descriptor {number} is out of order or too high")
            })?;
            lowest = number + 1;
        }
        for thread in &self.threads {
            let nodes = thread.memory_policy.as_ref().map_or(0, |policy| policy.nodes.len());
            let is_valid = nodes <= NUMA_NODE_WORDS && thread.mce_kill.is_none_or(|policy| policy <= MCE_KILL_DEFAULT);
            require(is_valid, || format!("thread {} has an invalid memory policy", thread.tid))?;
        }
        Ok(())
    }
}
