//! Resume: a seed becomes a running child on this node. Here the descriptor, the container, the restorer and the pager
//! come together; each does its own part in its own module.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_container::{Container, ContainerError};
use farfork_fabric::{Address, BlockingError, Connection, SeedKey};
use farfork_wire::descriptor::{DESCRIPTOR_BYTES_MAX, DecodeError, ExtentId, Layer, SharedObject, USER_SPACE_END};
use farfork_wire::{ChildId, Descriptor, NodeName, SeedId};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::eager::{self, EagerError};
use crate::owner_links::OwnerLinks;
use crate::pager::{ClientError, MemoryPlan, PagerClient, Paging, PlanError, Source, Strategy};
use crate::phase;
use crate::restore::{self, ChildPlan, First, LocalNode, Prepared, RestoreError, Restored, StandardStreams};
use crate::seed::SeedTable;

/// The file in a child's directory in which its container's stub leaves the wait status, four bytes.
pub const STATUS_FILE: &str = "exit";

/// A wait status, as wait(2) gives it.
const STATUS_BYTES: u64 = 4;

/// Name of the payload in the container's private directory.
pub const PAYLOAD_NAME: &str = "payload";

/// Bytes of shared memory that are fetched and written at a time.
const SHARED_CHUNK_BYTES: usize = 4 << 20;

/// The seeds of this node itself, which it reads by another way than through the network.
#[derive(Debug, Clone)]
pub struct OwnSeeds {
    /// This node.
    pub node: NodeName,
    /// Where they are served to it.
    pub address: Address,
    /// What they are, for this process is the one that serves them.
    pub table: Arc<SeedTable>,
}

impl OwnSeeds {
    /// Where this node reads a seed that others read at `address`.
    fn address_of(&self, seed: &SeedId, address: &Address) -> Address {
        if *seed.node() == self.node { self.address.clone() } else { address.clone() }
    }

    /// The descriptor of one of them, for whoever has what opens it.
    fn descriptor_of(&self, key: &SeedKey) -> Option<Arc<Descriptor>> {
        let seed = self.table.get(&key.seed).filter(|seed| seed.key().token == key.token)?;
        Some(seed.descriptor().clone())
    }
}

/// For pages of another seed that an image is to have: its owner reads them from memory, or from an image of its own.
const INHERITED_LIMIT: Duration = Duration::from_secs(30);

/// Reads seeds that others inherit from.
#[derive(Debug, Clone)]
pub struct OtherSeeds {
    /// This node's.
    pub own: OwnSeeds,
    /// How others' owners are reached.
    pub links: Arc<OwnerLinks>,
}

impl OtherSeeds {
    /// Fills `into` from an offset of an extent. Blocks.
    pub(crate) fn read(
        &self,
        layer: &Layer,
        extent: ExtentId,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), ResumeError> {
        let Layer { seed, token, owner } = layer;
        let (address, key) =
            (self.own.address_of(seed, &Address::Tcp(*owner)), SeedKey { seed: seed.clone(), token: *token });
        let (key, deadline) = (Arc::new(key), Instant::now() + INHERITED_LIMIT);
        self.links.with(&address, seed.node(), |connection| {
            farfork_fabric::read_blocking(connection, &key, extent, offset, into, deadline)
                .map_err(|cause| ResumeError::Fetch { what: "inherited memory", cause })
        })
    }
}

/// A seed as another node knows it.
#[derive(Debug, Clone)]
pub struct SeedSource {
    /// Which seed, and what opens it.
    pub key: Arc<SeedKey>,
    /// Where its owner serves it.
    pub owner: Address,
    /// How the owner is reached.
    pub links: Arc<OwnerLinks>,
    /// Its state.
    pub descriptor: Arc<Descriptor>,
    /// What it has in common with other seeds of its parent ([`Descriptor::lineage`]).
    pub lineage: Arc<str>,
    own: OwnSeeds,
}

/// What a child is resumed from and into.
#[derive(Debug)]
pub struct ResumeRequest<'a> {
    /// The child.
    pub child: &'a ChildId,
    /// Its directory on the node.
    pub directory: &'a Path,
    /// Its seed.
    pub source: &'a SeedSource,
    /// Where it is to live.
    pub container: &'a Container,
    /// Its standard streams.
    pub streams: StandardStreams,
    /// Where its container's stub leaves its wait status: of [`make_status_file`].
    pub status_file: OwnedFd,
    /// Where its parent waited to be told what it is: a socket with the answer in it.
    pub caller: Option<OwnedFd>,
    /// Bytes that it finds in a file of its own.
    pub payload: Option<&'a [u8]>,
    /// Whether it waits, complete, before its first instruction.
    pub paused: bool,
    /// Whether it is to have no more rights than its own data needs.
    pub untrusted: bool,
    /// How its pages are fetched.
    pub strategy: Strategy,
    /// How long all this may take.
    pub limit: Duration,
}

/// Why a seed did not become a child. Nothing of the child is left once its container is dropped.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// The descriptor or shared memory could not be read from the owner.
    #[error("{what} could not be read from its owner: {cause}")]
    Fetch {
        /// What was read.
        what: &'static str,
        /// Why not.
        cause: BlockingError,
    },
    /// The owner's bytes are no descriptor.
    #[error(transparent)]
    Descriptor(#[from] DecodeError),
    /// The child could not be restored.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The container did not take the payload.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// The memory plan could not be written.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The pager does not serve the child.
    #[error(transparent)]
    Pager(#[from] ClientError),
    /// It is to have all of its memory before it runs, and does not get it.
    #[error(transparent)]
    Eager(#[from] EagerError),
    /// The node's own means.
    #[error("{what} could not be made: {cause}")]
    Local {
        /// What.
        what: &'static str,
        /// errno.
        cause: io::Error,
    },
}

impl ResumeError {
    pub(crate) fn local(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::Local { what, cause }
    }
}

impl SeedSource {
    /// Reads and validates the descriptor of a seed that other nodes read at `address`; one of this node's own is at hand.
    ///
    /// # Errors
    /// [`ResumeError::Fetch`], [`ResumeError::Descriptor`].
    pub fn fetch(
        key: Arc<SeedKey>,
        address: &Address,
        own: OwnSeeds,
        links: &Arc<OwnerLinks>,
        deadline: Instant,
    ) -> Result<Self, ResumeError> {
        let owner = own.address_of(&key.seed, address);
        if let Some(descriptor) = phase!("descriptor.read", own.descriptor_of(&key)) {
            return Ok(Self::new((key, descriptor), owner, links, own));
        }
        let extent = ExtentId::DESCRIPTOR;
        let read = |connection: &mut dyn Connection| {
            farfork_fabric::fetch(connection, &key, extent, DESCRIPTOR_BYTES_MAX, deadline)
                .map_err(|cause| ResumeError::Fetch { what: "the seed's descriptor", cause })
        };
        let bytes = phase!("descriptor.read", links.with(&owner, key.seed.node(), read))?;
        let descriptor = Arc::new(phase!("descriptor.decode", farfork_wire::descriptor::decode(&bytes))?);
        Ok(Self::new((key, descriptor), owner, links, own))
    }

    fn new(
        (key, descriptor): (Arc<SeedKey>, Arc<Descriptor>),
        owner: Address,
        links: &Arc<OwnerLinks>,
        own: OwnSeeds,
    ) -> Self {
        let lineage = descriptor.lineage(key.seed.node()).into();
        Self { key, owner, links: Arc::clone(links), descriptor, lineage, own }
    }

    /// The seeds that pages of its children come from: itself, and its layers.
    pub(crate) fn sources(&self) -> Vec<Source> {
        let layers = self.descriptor.layers.iter().map(|layer| {
            let Layer { seed, token, owner } = layer;
            let owner = self.own.address_of(seed, &Address::Tcp(*owner));
            Source { seed: seed.clone(), token: *token, owner }
        });
        std::iter::once(Source::new(&self.key, self.owner.clone())).chain(layers).collect()
    }

    /// The plan of all its memory, for a pager that shall have pages of it before there is a child.
    pub fn memory_plan(&self) -> MemoryPlan {
        let everything = vec![std::slice::from_ref(&(0..USER_SPACE_END)); self.descriptor.process_count()];
        MemoryPlan::from_descriptor(&self.descriptor, self.sources(), &everything, Strategy::default())
    }

    /// Copies the seed's shared memory here: it cannot be paged safely, so it is complete before a child runs.
    pub(crate) fn fetch_shared(&self, deadline: Instant) -> Result<Vec<File>, ResumeError> {
        let objects = &self.descriptor.shared_objects;
        if objects.is_empty() {
            return Ok(Vec::new());
        }
        self.links.with(&self.owner, self.key.seed.node(), |connection| {
            objects.iter().map(|object| self.fetch_object(object, connection, deadline)).collect()
        })
    }

    fn fetch_object(
        &self,
        object: &SharedObject,
        connection: &mut dyn Connection,
        deadline: Instant,
    ) -> Result<File, ResumeError> {
        use std::os::unix::fs::FileExt;
        let file =
            farfork_sys::memfd::create(&object.name, object.seals.is_some()).map_err(ResumeError::local("a memfd"))?;
        file.set_len(object.bytes).map_err(ResumeError::local("a memfd"))?;
        let mut chunk = vec![0; SHARED_CHUNK_BYTES];
        // Only what holds data: the rest of a new memfd is zeroes.
        for run in &self.descriptor.extents[object.extent.0 as usize].populated {
            let first = run.first * farfork_wire::PAGE_SIZE;
            let end = (first + run.count * farfork_wire::PAGE_SIZE).min(object.bytes);
            for offset in (first..end).step_by(SHARED_CHUNK_BYTES) {
                let part = &mut chunk[..((end - offset) as usize).min(SHARED_CHUNK_BYTES)];
                farfork_fabric::read_blocking(connection, &self.key, object.extent, offset, part, deadline)
                    .map_err(|cause| ResumeError::Fetch { what: "the seed's shared memory", cause })?;
                file.write_all_at(part, offset).map_err(ResumeError::local("a memfd"))?;
            }
        }
        Ok(file)
    }
}

/// Makes the child. When this returns it runs, or waits if it is to be paused, and its memory is served.
///
/// # Errors
/// [`ResumeError`]; the caller drops the container, and tells the pager to release the child. A child that the pager
/// refuses may have run up to the first page that it misses.
pub fn resume(request: ResumeRequest<'_>, node: &LocalNode, pager: &PagerClient) -> Result<Restored, ResumeError> {
    let ResumeRequest { child, directory, source, container, streams, status_file, caller, payload, .. } = request;
    let ResumeRequest { paused, untrusted, strategy, limit, .. } = request;
    let (deadline, is_eager) = (Instant::now() + limit, strategy.paging == Paging::Eager);
    let put = |bytes| phase!("resume.payload", container.put_file(PAYLOAD_NAME, bytes, 0o444));
    let payload = payload.map(put).transpose()?;
    let shared = phase!("resume.shared", source.fetch_shared(deadline))?;
    let first = container.waiter().map(|waiter| First { init: container.init().as_fd(), waiter });
    let descriptor = match untrusted {
        true => Cow::Owned(restore::confined(&source.descriptor, container.users())?),
        false => Cow::Borrowed(&*source.descriptor),
    };
    let mut prepared = Prepared::new(ChildPlan {
        descriptor: &descriptor,
        node,
        stub_pid: container.asked_pid(),
        control: container.control(),
        streams,
        shared,
        caller,
        payload: payload.as_deref(),
        paused: paused || is_eager,
        zygote: None,
        untrusted,
        users: first.zip(container.users()),
    })?;
    let (pager_end, child_end) = farfork_sys::fdpass::seqpacket_pair().map_err(ResumeError::local("a socket"))?;
    farfork_sys::fdpass::tell_sender(pager_end.as_fd()).map_err(ResumeError::local("a socket"))?;
    let building = phase!("resume.child");
    let left = deadline.saturating_duration_since(Instant::now());
    // The stub builds it while the pager is told of it, and takes it on: nobody waits for another.
    let begun = prepared.begin(child_end.as_fd(), status_file.as_fd(), left)?;
    let plan = MemoryPlan::from_descriptor(&source.descriptor, source.sources(), &prepared.registered(), strategy);
    phase!("resume.memory", plan.write(directory))?;
    let adoption = phase!("resume.ask", pager.begin_adoption(child, directory, pager_end));
    let restored = begun.await_child();
    drop(building);
    phase!("resume.adopt", adoption.wait())?;
    let mut restored = restored?;
    if is_eager {
        restored.realtime_ns = phase!("resume.eager", eager::fetch_all(child, restored.pid, pager, deadline))?;
        if !paused {
            restore::unpause(container.control()).map_err(RestoreError::Control)?;
        }
    }
    Ok(restored)
}

/// Makes the file in which the container's stub leaves the wait status. Its block is taken now, so that the child's end is told also where
/// the file system is full by then, and does not count as memory of the container's.
///
/// # Errors
/// As open(2) and fallocate(2).
pub fn make_status_file(directory: &Path) -> io::Result<OwnedFd> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(directory.join(STATUS_FILE))?;
    match rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, STATUS_BYTES) {
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(file.into()),
        Err(error) => Err(error.into()),
    }
}
