//! Reads descriptors and shared memory of seeds from their owners, for the node of a child.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_fabric::{Address, Connection, SeedKey};
use farfork_wire::descriptor::{DESCRIPTOR_BYTES_MAX, ExtentId, Layer, SharedObject, USER_SPACE_END, WrittenRun};
use farfork_wire::{Descriptor, NodeName, SeedId};

use super::error::ResumeError;
use super::file_sources::FileCheckCache;
use crate::owner_connections::OwnerConnectionPool;
use crate::pager::{MemoryPlan, PageSource, PagingStrategy};
use crate::phase;
use crate::restore::SharedContents;
use crate::seed::SeedTable;

/// A range of bytes in an extent.
struct ExtentBytes {
    extent: ExtentId,
    bytes: Range<u64>,
}

/// Bytes of shared memory that are fetched and written at a time.
const SHARED_CHUNK_BYTES: usize = 4 << 20;

/// The seeds of this node, which it reads without the network.
#[derive(Debug, Clone)]
pub struct LocalSeeds {
    /// This node.
    pub node: NodeName,
    /// The address at which this node reads its own seeds.
    pub address: Address,
    /// The table of these seeds.
    pub table: Arc<SeedTable>,
}

impl LocalSeeds {
    /// Returns the address at which this node reads a seed that other nodes read at `address`.
    fn resolve_address(&self, seed: &SeedId, address: &Address) -> Address {
        if *seed.node() == self.node { self.address.clone() } else { address.clone() }
    }

    /// Returns the descriptor of a local seed, if the token of `key` is right.
    fn find_descriptor(&self, key: &SeedKey) -> Option<Arc<Descriptor>> {
        let seed = self.table.get(&key.seed).filter(|seed| seed.key().token == key.token)?;
        Some(seed.descriptor().clone())
    }
}

/// Time limit for reading pages of another seed for an image. The owner of that seed reads them from memory, or from the
/// seed's image.
const LAYER_READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads seeds from which others inherit.
#[derive(Debug, Clone)]
pub struct LayerReader {
    /// The seeds of this node.
    pub local: LocalSeeds,
    /// Connections to other owners.
    pub connections: Arc<OwnerConnectionPool>,
}

impl LayerReader {
    /// Fills `into` from an offset of an extent. Blocks.
    pub(crate) fn read_layer(
        &self,
        layer: &Layer,
        extent: ExtentId,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), ResumeError> {
        let Layer { seed, token, owner } = layer;
        let (address, key) =
            (self.local.resolve_address(seed, &Address::Tcp(*owner)), SeedKey { seed: seed.clone(), token: *token });
        let (key, deadline) = (Arc::new(key), Instant::now() + LAYER_READ_TIMEOUT);
        self.connections.with_connection(&address, seed.node(), |connection| {
            farfork_fabric::read_blocking(connection, &key, extent, offset, into, deadline)
                .map_err(|cause| ResumeError::Fetch { what: "inherited memory", cause })
        })
    }
}

/// The information about a seed that a node needs to start children.
#[derive(Debug, Clone)]
pub struct SeedSource {
    /// Id and token of the seed.
    pub key: Arc<SeedKey>,
    /// The address at which its owner serves it.
    pub owner: Address,
    /// Connections to owners.
    pub connections: Arc<OwnerConnectionPool>,
    /// Its descriptor.
    pub descriptor: Arc<Descriptor>,
    /// The access group key of the descriptor, which is equal for seeds of the same process with the same credentials.
    pub lineage: Arc<str>,
    local: LocalSeeds,
    pub(super) file_checks: Arc<FileCheckCache>,
}

impl SeedSource {
    /// Reads and validates the descriptor of a seed that other nodes read at `address`. A seed of this node is not fetched.
    ///
    /// # Errors
    /// [`ResumeError::Fetch`], [`ResumeError::Descriptor`].
    pub fn fetch(
        key: Arc<SeedKey>,
        address: &Address,
        own: LocalSeeds,
        links: &Arc<OwnerConnectionPool>,
        deadline: Instant,
    ) -> Result<Self, ResumeError> {
        let owner = own.resolve_address(&key.seed, address);
        if let Some(descriptor) = phase!("descriptor.read", own.find_descriptor(&key)) {
            return Ok(Self::new(key, descriptor, owner, links, own));
        }
        let extent = ExtentId::DESCRIPTOR;
        let read = |connection: &mut dyn Connection| {
            farfork_fabric::fetch_extent(connection, &key, extent, DESCRIPTOR_BYTES_MAX, deadline)
                .map_err(|cause| ResumeError::Fetch { what: "the seed's descriptor", cause })
        };
        let bytes = phase!("descriptor.read", links.with_connection(&owner, key.seed.node(), read))?;
        let descriptor = Arc::new(phase!("descriptor.decode", farfork_wire::descriptor::decode(&bytes))?);
        Ok(Self::new(key, descriptor, owner, links, own))
    }

    fn new(
        key: Arc<SeedKey>,
        descriptor: Arc<Descriptor>,
        owner: Address,
        links: &Arc<OwnerConnectionPool>,
        own: LocalSeeds,
    ) -> Self {
        let lineage = descriptor.access_group_key(key.seed.node()).into();
        Self {
            key,
            owner,
            connections: Arc::clone(links),
            descriptor,
            lineage,
            local: own,
            file_checks: Arc::default(),
        }
    }

    /// Returns the sources of its children's pages: the seed itself and its layers.
    pub(crate) fn page_sources(&self) -> Vec<PageSource> {
        let layers = self.descriptor.layers.iter().map(|layer| {
            let Layer { seed, token, owner } = layer;
            let owner = self.local.resolve_address(seed, &Address::Tcp(*owner));
            PageSource { seed: seed.clone(), token: *token, owner }
        });
        std::iter::once(PageSource::new(&self.key, self.owner.clone())).chain(layers).collect()
    }

    /// Returns a memory plan of the whole seed, to prewarm a pager's cache before there is a child.
    pub fn full_memory_plan(&self) -> MemoryPlan {
        let everything = vec![std::slice::from_ref(&(0..USER_SPACE_END)); self.descriptor.process_count()];
        MemoryPlan::from_descriptor(&self.descriptor, self.page_sources(), &everything, PagingStrategy::default())
    }

    /// Copies the seed's shared memory to this node. Shared memory cannot be paged safely, so it must be complete
    /// before a child runs.
    pub(crate) fn fetch_shared_memory(&self, deadline: Instant) -> Result<SharedContents, ResumeError> {
        let (objects, written) = (&self.descriptor.shared_objects, self.descriptor.written_runs());
        if objects.is_empty() && written.is_empty() {
            return Ok(SharedContents::default());
        }
        self.connections.with_connection(&self.owner, self.key.seed.node(), |connection| {
            let fetched = objects.iter().map(|object| self.fetch_shared_object(object, connection, deadline));
            let objects = fetched.collect::<Result<Vec<File>, ResumeError>>()?;
            let is_any = !written.is_empty();
            let written = is_any.then(|| self.fetch_written_pages(&written, connection, deadline)).transpose()?;
            Ok(SharedContents { objects, written_pages: written })
        })
    }

    /// Fetches written pages of private file mappings. The pager cannot provide them on faults: if the page cache has
    /// the file's page, the kernel maps it without a userfaultfd fault.
    fn fetch_written_pages(
        &self,
        runs: &[WrittenRun],
        connection: &mut dyn Connection,
        deadline: Instant,
    ) -> Result<File, ResumeError> {
        let file =
            farfork_sys::memfd::create("farfork-written", false).map_err(ResumeError::creation_error("a memfd"))?;
        for run in runs {
            let part = ExtentBytes { extent: run.extent, bytes: run.extent_offset..run.extent_offset + run.bytes };
            self.copy_extent_bytes(&part, &file, run.file_offset, connection, deadline)?;
        }
        Ok(file)
    }

    fn fetch_shared_object(
        &self,
        object: &SharedObject,
        connection: &mut dyn Connection,
        deadline: Instant,
    ) -> Result<File, ResumeError> {
        let file = farfork_sys::memfd::create(&object.name, object.seals.is_some())
            .map_err(ResumeError::creation_error("a memfd"))?;
        file.set_len(object.bytes).map_err(ResumeError::creation_error("a memfd"))?;
        // Copy only runs with data: the rest of a new memfd is zero.
        for run in &self.descriptor.extents[object.extent.0 as usize].populated {
            let first = run.first * farfork_wire::PAGE_SIZE;
            let end = (first + run.count * farfork_wire::PAGE_SIZE).min(object.bytes);
            let part = ExtentBytes { extent: object.extent, bytes: first..end };
            self.copy_extent_bytes(&part, &file, first, connection, deadline)?;
        }
        Ok(file)
    }

    /// Copies a part of an extent into a file, at offset `into`.
    fn copy_extent_bytes(
        &self,
        part: &ExtentBytes,
        file: &File,
        into: u64,
        connection: &mut dyn Connection,
        deadline: Instant,
    ) -> Result<(), ResumeError> {
        use std::os::unix::fs::FileExt;
        let ExtentBytes { extent, bytes: Range { start, end } } = *part;
        let mut chunk = vec![0; SHARED_CHUNK_BYTES.min((end - start) as usize)];
        for offset in (start..end).step_by(SHARED_CHUNK_BYTES) {
            let read = &mut chunk[..((end - offset) as usize).min(SHARED_CHUNK_BYTES)];
            farfork_fabric::read_blocking(connection, &self.key, extent, offset, read, deadline)
                .map_err(|cause| ResumeError::Fetch { what: "the seed's shared memory", cause })?;
            file.write_all_at(read, into + offset - start).map_err(ResumeError::creation_error("a memfd"))?;
        }
        Ok(())
    }
}
