//! Shared code of both examples: exports memory of the example process, as an owner exports a template's memory, and
//! keeps reads of that memory in flight.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_fabric::{
    Completion, Connection, Exporter, LocalTemplate, ReadMode, ReadRequest, Refusal, Region, SeedKey, Span,
    TemplateMemory,
};
use farfork_sys::pidfd;
use farfork_wire::descriptor::ExtentId;
use farfork_wire::{NodeName, SeedId, Token};

/// Size of a page, in bytes.
pub(crate) const PAGE: u64 = 4096;

/// Time limit for all reads of a measurement.
const READS_LIMIT: Duration = Duration::from_secs(60);

/// Polls a connection and collects completions. Each example decides whether it sleeps between polls.
pub(crate) type Wait = fn(&mut dyn Connection, &mut Vec<Completion>);

/// `bytes` of this process's memory from `address` on.
struct OwnMemory {
    memory: TemplateMemory,
    address: u64,
    bytes: u64,
}

impl Region for OwnMemory {
    fn extent_bytes(&self, _: ExtentId) -> Option<u64> {
        Some(self.bytes)
    }

    fn read(&self, _: ExtentId, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.memory.read(self.address + offset, into)
    }

    fn local_template(&self) -> Option<LocalTemplate> {
        let template = pidfd::open(std::process::id() as i32).ok()?;
        Some(LocalTemplate { template, extents: vec![(ExtentId(0), self.address)] })
    }
}

struct OneRegion(Arc<OwnMemory>);

impl Exporter for OneRegion {
    fn open_region(&self, _: &SeedId, _: &Token) -> Result<Arc<dyn Region>, Refusal> {
        Ok(Arc::clone(&self.0) as Arc<dyn Region>)
    }
}

/// Serves `memory` to all requesters, as the only extent of the seed of [`key`]. `memory` must outlive the exporter.
pub(crate) fn export(memory: &[u8]) -> io::Result<Arc<dyn Exporter>> {
    let own = TemplateMemory::new(pidfd::open(std::process::id() as i32)?)?;
    let region = OwnMemory { memory: own, address: memory.as_ptr() as u64, bytes: memory.len() as u64 };
    Ok(Arc::new(OneRegion(Arc::new(region))))
}

/// Returns the key of a seed of node `n1`.
pub(crate) fn key() -> Arc<SeedKey> {
    let seed = SeedId::new(NodeName::new("n1").expect("a name"), 1);
    Arc::new(SeedKey { seed, token: Token::from_bytes([7; 16]) })
}

/// The reads to perform: size of each, number in flight, total size, and size of the memory.
pub(crate) struct Course {
    pub(crate) bytes: u64,
    pub(crate) depth: u64,
    pub(crate) total_bytes: u64,
    pub(crate) memory_bytes: u64,
}

/// Performs the reads. Returns the elapsed time.
pub(crate) fn read(connection: &mut dyn Connection, key: &Arc<SeedKey>, course: &Course, wait: Wait) -> Duration {
    let &Course { bytes, depth, total_bytes, memory_bytes } = course;
    let (mut submitted, mut ended, reads) = (0, 0, total_bytes / bytes);
    let mut completions = Vec::new();
    let before = Instant::now();
    while ended < reads {
        while submitted < reads && submitted - ended < depth {
            let offset = submitted * 7919 * bytes % (memory_bytes - bytes) / PAGE * PAGE;
            let spans = vec![Span { extent: ExtentId(0), offset, bytes: bytes as u32 }];
            let deadline = before + READS_LIMIT;
            let request = ReadRequest { tag: submitted, key: Arc::clone(key), mode: ReadMode::Exact, spans, deadline };
            connection.submit_read(request).expect("within the limits");
            submitted += 1;
        }
        wait(connection, &mut completions);
        for completion in completions.drain(..) {
            connection.recycle_buffer(completion.result.expect("a reply").data);
            ended += 1;
        }
    }
    before.elapsed()
}
