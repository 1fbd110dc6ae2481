//! Validates a descriptor: each index is within its list, each range is in user space and in order. The restorer builds
//! an address space from the descriptor and relies on these checks.

use super::{
    Backing, Descriptor, EagerBytes, ExtentId, ExtentSource, FileDescriptor, FileLock, FileOwner, Mapping, OpenFile,
    Process, Thread,
};
use crate::PAGE_SIZE;

/// End of user space on x86-64 with four-level page tables, less its guard page.
pub const USER_SPACE_END: u64 = 0x7fff_ffff_f000;

/// Number of words in the kernel's `user_regs_struct`.
pub const REGISTER_WORDS: usize = 27;

/// Index of the first segment selector in these words: ds, then es, fs and gs.
pub const FIRST_SELECTOR_INDEX: usize = 23;

/// Maximum number of threads of one process: the default pid_max of a machine with at most 32 CPUs.
pub const THREADS_MAX: usize = 32_768;

/// Maximum number of words of a CPU set. A kernel supports at most 8192 CPUs on x86-64.
const CPU_WORDS_MAX: usize = 8192 / 32;

/// Largest extended state, in bytes. With AMX it has 11 KiB.
pub const XSTATE_BYTES_MAX: usize = 16 << 10;

/// Smallest extended state, in bytes: the legacy area and the XSAVE header.
const XSTATE_BYTES_MIN: usize = 576;

/// The check that a descriptor failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the descriptor is invalid: {reason}")]
pub struct InvalidDescriptor {
    pub(super) reason: String,
}

pub(super) fn require(holds: bool, what: impl FnOnce() -> String) -> Result<(), InvalidDescriptor> {
    if holds { Ok(()) } else { Err(InvalidDescriptor { reason: what() }) }
}

/// The parts of a descriptor that belong to one process of the tree, with the tables that all processes share.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProcessView<'a> {
    pub(super) descriptor: &'a Descriptor,
    pub(super) process: &'a Process,
    pub(super) threads: &'a [Thread],
    pub(super) mappings: &'a [Mapping],
    pub(super) file_descriptors: &'a [FileDescriptor],
    pub(super) file_locks: &'a [FileLock],
    pub(super) file_owners: &'a [FileOwner],
    pub(super) eager: &'a [EagerBytes],
}

impl Descriptor {
    /// Checks everything that readers of a descriptor rely on.
    ///
    /// # Errors
    /// The first check that failed.
    pub fn validate(&self) -> Result<(), InvalidDescriptor> {
        self.validate_tree()?;
        let has_path = self.origin.root.as_ref().is_none_or(|root| root.starts_with('/'));
        require(has_path, || "the root of the seed is not an absolute path".to_owned())?;
        for part in self.process_views() {
            let is_somewhere = part.process.root.as_ref().is_none_or(|root| root.starts_with('/'));
            require(is_somewhere, || format!("the root of process {} is not an absolute path", part.process.pid))?;
            part.validate()?;
        }
        self.validate_layers()?;
        self.validate_extents()?;
        self.validate_files()?;
        self.validate_file_versions()?;
        self.validate_volumes()?;
        self.validate_attributes()?;
        self.validate_resources()
    }
}

impl ProcessView<'_> {
    fn validate(&self) -> Result<(), InvalidDescriptor> {
        self.validate_threads()?;
        self.validate_mappings()?;
        self.validate_descriptors()?;
        self.validate_process_resources()?;
        self.validate_eager_bytes()
    }

    fn validate_threads(&self) -> Result<(), InvalidDescriptor> {
        let count = self.threads.len();
        require((1..=THREADS_MAX).contains(&count), || format!("it has {count} threads, {THREADS_MAX} at most"))?;
        let leader = self.threads[0].tid;
        require(leader == self.process.pid, || {
            format!("the first thread has id {leader}, the process {}", self.process.pid)
        })?;
        for thread in self.threads {
            let tid = thread.tid;
            // The first process may have pid 1. In a child, such a process gets a pid namespace of its own, because the
            // container's pid 1 is the stub.
            let may_be_init = std::ptr::eq(self.process, &self.descriptor.process) && tid == leader;
            require(tid > 1 || (tid == 1 && may_be_init), || format!("a thread has id {tid}, which only an init has"))?;
            let (words, xstate) = (thread.registers.len(), thread.xstate.len());
            require(words == REGISTER_WORDS, || format!("thread {}: {words} registers", thread.tid))?;
            require((XSTATE_BYTES_MIN..=XSTATE_BYTES_MAX).contains(&xstate), || {
                format!("thread {}: {xstate} bytes of extended state", thread.tid)
            })?;
            let selectors = thread.registers.iter().skip(FIRST_SELECTOR_INDEX);
            require(selectors.copied().all(|selector| selector <= u64::from(u16::MAX)), || {
                format!("thread {tid}: invalid segment selectors")
            })?;
            require(thread.cpus.len() <= CPU_WORDS_MAX, || format!("thread {tid}: too many CPUs"))?;
            require(thread.name.len() < 16, || format!("thread {}: its name is too long", thread.tid))?;
        }
        Ok(())
    }

    fn validate_mappings(&self) -> Result<(), InvalidDescriptor> {
        let mut lowest = 0;
        for mapping in self.mappings {
            let mapping_name = || format!("mapping {:#x}-{:#x}", mapping.start, mapping.end);
            let in_order = mapping.start >= lowest && mapping.start < mapping.end && mapping.end <= USER_SPACE_END;
            require(in_order, || format!("{}: out of order or outside user space", mapping_name()))?;
            require(mapping.start.is_multiple_of(PAGE_SIZE) && mapping.end.is_multiple_of(PAGE_SIZE), || {
                format!("{}: not whole pages", mapping_name())
            })?;
            require(mapping.protection <= 7, || {
                format!("{}: invalid protection {:#x}", mapping_name(), mapping.protection)
            })?;
            self.validate_backing(mapping.end - mapping.start, &mapping.backing)
                .map_err(|wrong| InvalidDescriptor { reason: format!("{}: {}", mapping_name(), wrong.reason) })?;
            validate_guards(mapping)?;
            lowest = mapping.end;
        }
        Ok(())
    }

    fn validate_backing(&self, bytes: u64, backing: &Backing) -> Result<(), InvalidDescriptor> {
        let extent = |id: ExtentId| {
            let known = self.descriptor.extents.get(id.0 as usize);
            require(known.is_some_and(|extent| extent.bytes == bytes), || {
                format!("extent {} is missing or of another length", id.0)
            })
        };
        let file = |index: u32, offset: u64| {
            require((index as usize) < self.descriptor.mapped_files.len(), || format!("file {index} is missing"))?;
            require(offset.is_multiple_of(PAGE_SIZE) && offset <= i64::MAX as u64 - bytes, || {
                format!("the file offset {offset} is invalid")
            })
        };
        match *backing {
            Backing::Anonymous { extent: None } | Backing::Special(_) => Ok(()),
            Backing::Anonymous { extent: Some(id) } => extent(id),
            Backing::PrivateFile { file: index, offset, extent: id } => file(index, offset).and_then(|()| extent(id)),
            Backing::SharedFile { file: index, offset, extent: id, .. } => {
                file(index, offset).and_then(|()| id.map_or(Ok(()), extent))
            }
            Backing::SharedMemory { object, offset } => self.validate_shared_object(object, offset),
            Backing::PrivateObject { object, offset, written } => {
                self.validate_shared_object(object, offset)?;
                written.map_or(Ok(()), |id| extent(id).and_then(|()| self.validate_written_extent(id)))
            }
            Backing::PrivateWritableFile { file: index, offset, extent: id, written } => {
                file(index, offset).and_then(|()| extent(id))?;
                written.map_or(Ok(()), |id| extent(id).and_then(|()| self.validate_written_extent(id)))
            }
        }
    }

    fn validate_shared_object(&self, object: u32, offset: u64) -> Result<(), InvalidDescriptor> {
        let known = (object as usize) < self.descriptor.shared_objects.len();
        require(known && offset.is_multiple_of(PAGE_SIZE), || {
            format!("shared object {object} is missing, or the offset {offset} is invalid")
        })
    }

    /// Checks an extent of written pages. A node reads them from the owner before the process starts, so no page may be
    /// inherited from another seed.
    fn validate_written_extent(&self, id: ExtentId) -> Result<(), InvalidDescriptor> {
        let is_owners = self.descriptor.extents[id.0 as usize].inherited.is_empty();
        require(is_owners, || format!("extent {} of written pages inherits pages", id.0))
    }

    fn validate_descriptors(&self) -> Result<(), InvalidDescriptor> {
        let mut lowest = 0;
        for descriptor in self.file_descriptors {
            let number = descriptor.number;
            require(number >= lowest && number < FD_NUMBERS_MAX, || {
                format!("file descriptor {number} is out of order")
            })?;
            require((descriptor.open_file as usize) < self.descriptor.open_files.len(), || {
                format!("file descriptor {number}: its file is missing")
            })?;
            lowest = number + 1;
        }
        Ok(())
    }

    fn validate_eager_bytes(&self) -> Result<(), InvalidDescriptor> {
        for eager in self.eager {
            let end = eager.address.checked_add(eager.bytes.len() as u64);
            let whole = eager.address.is_multiple_of(PAGE_SIZE) && (eager.bytes.len() as u64).is_multiple_of(PAGE_SIZE);
            let inside = end.is_some_and(|end| {
                self.mappings.iter().any(|mapping| {
                    mapping.start <= eager.address
                        && end <= mapping.end
                        && matches!(mapping.backing, Backing::Anonymous { .. })
                })
            });
            require(whole && inside, || {
                format!("the eager bytes at {:#x} are not whole pages of an anonymous mapping", eager.address)
            })?;
        }
        Ok(())
    }
}

/// Descriptor numbers are below this: the kernel's default of `fs.nr_open`.
const FD_NUMBERS_MAX: u32 = 1 << 20;

impl Descriptor {
    fn validate_extents(&self) -> Result<(), InvalidDescriptor> {
        for (index, extent) in self.extents.iter().enumerate() {
            let pages = extent.bytes / PAGE_SIZE;
            require(extent.bytes.is_multiple_of(PAGE_SIZE) && extent.bytes <= USER_SPACE_END, || {
                format!("extent {index} has {} bytes", extent.bytes)
            })?;
            let mut lowest = 0;
            for run in &extent.populated {
                let end = run.first.checked_add(run.count);
                let fits = run.first >= lowest && run.count > 0 && end.is_some_and(|end| end <= pages);
                require(fits, || format!("extent {index}: its pages are out of order or outside"))?;
                lowest = run.first + run.count;
            }
            self.validate_inherited(index, extent)?;
            match extent.source {
                ExtentSource::Template { process, address } => {
                    require((process as usize) < self.process_count(), || {
                        format!("extent {index}: process {process} is missing")
                    })?;
                    let end = address.checked_add(extent.bytes);
                    let fits = address.is_multiple_of(PAGE_SIZE) && end.is_some_and(|end| end <= USER_SPACE_END);
                    require(fits, || format!("extent {index} lies outside user space"))?;
                }
                ExtentSource::SharedObject { object } => {
                    let known = (object as usize) < self.shared_objects.len();
                    require(known, || format!("extent {index}: shared object {object} is missing"))?;
                }
                ExtentSource::File { version } => {
                    let known = (version as usize) < self.file_versions.len();
                    require(known, || format!("extent {index}: file version {version} is missing"))?;
                }
            }
        }
        for (index, object) in self.shared_objects.iter().enumerate() {
            let extent = self.extents.get(object.extent.0 as usize);
            let rounded = object.bytes.checked_next_multiple_of(PAGE_SIZE);
            require(extent.is_some_and(|extent| Some(extent.bytes) == rounded), || {
                format!("shared object {index}: its extent is missing or of another length")
            })?;
        }
        Ok(())
    }

    fn validate_files(&self) -> Result<(), InvalidDescriptor> {
        for file in &self.open_files {
            if let OpenFile::MemFd { object, .. } = file {
                let known = (*object as usize) < self.shared_objects.len();
                require(known, || format!("a memfd's object {object} is missing"))?;
            }
        }
        for moved in &self.moved_epoll_targets {
            let is_epoll = matches!(self.open_files.get(moved.epoll as usize), Some(OpenFile::Epoll { .. }));
            let is_valid =
                is_epoll && (moved.open_file as usize) < self.open_files.len() && moved.target.number < FD_NUMBERS_MAX;
            require(is_valid, || {
                format!("an epoll's registration of the former fd {} is invalid", moved.target.number)
            })?;
        }
        for object in self.processes().filter_map(|process| process.exe_object) {
            let known = (object as usize) < self.shared_objects.len();
            require(known, || format!("an executable's object {object} is missing"))?;
        }
        let is_caller = |file: &&OpenFile| matches!(file, OpenFile::CheckpointSocket { is_caller: true, .. });
        let callers = self.open_files.iter().filter(is_caller).count();
        require(callers <= 1, || format!("{callers} sockets wait for the answer to a checkpoint; at most one may"))
    }
}

fn validate_guards(mapping: &Mapping) -> Result<(), InvalidDescriptor> {
    let pages = (mapping.end - mapping.start) / PAGE_SIZE;
    let mut lowest = 0;
    for run in &mapping.guards {
        let end = run.first.checked_add(run.count);
        let fits = run.first >= lowest && run.count > 0 && end.is_some_and(|end| end <= pages);
        require(fits, || format!("mapping {:#x}: its guard pages are out of order or outside", mapping.start))?;
        lowest = run.first + run.count;
    }
    Ok(())
}
