//! A seed with known contents, which `program.c` also computes, and its owner.

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::sleep;
use std::time::Duration;

use farfork_fabric::{Exporter, LocalTemplate, Refusal, Region, shm, tcp};
use farfork_fork::pager::{
    AccessReport, LearnerThread, MapSegment, MemoryPlan, PageSource, PagingStrategy, PopulatedExtent, SharedWorkingSet,
};
use farfork_wire::descriptor::{ExtentId, PageRun};
use farfork_wire::{PAGE_SIZE, SeedId, Token};

/// The address of the program's memory.
pub(crate) const AREA: u64 = 0x2000_0000_0000;

const EXTENT: ExtentId = ExtentId(3);

/// A dummy descriptor: pagers only check whether the seed exists.
const DESCRIPTOR: &[u8] = b"no descriptor";

const HOLE: std::ops::Range<u64> = 256..384;
const WORDS: u64 = PAGE_SIZE / 8;

/// Delay of each refusal for a dropped seed: long enough that further requests are in flight.
const REFUSAL_DELAY: Duration = Duration::from_millis(100);

/// Longest wait of an owner for the slowest stream. The pager considers an owner unreachable after a minute.
const PACE_LIMIT: Duration = Duration::from_secs(30);

fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

pub(crate) fn is_populated(page: u64) -> bool {
    page % 8 != 7 && !HOLE.contains(&page)
}

/// Returns the contents of a page of the seed.
pub(crate) fn contents(page: u64) -> Vec<u8> {
    let word = |word| if is_populated(page) { mix(page * WORDS + word) } else { 0 };
    (0..WORDS).flat_map(|index| word(index).to_le_bytes()).collect()
}

/// Keeps streams of different owners together: an owner whose stream is too far ahead waits for the slowest stream.
pub(crate) struct StreamPace {
    progress: Mutex<StreamProgress>,
    changed: Condvar,
    /// Maximum number of pages by which a stream may be ahead.
    lead_max: u64,
}

#[derive(Default)]
struct StreamProgress {
    /// Number of served pages of each stream.
    served: Vec<u64>,
    /// `served` at the first wait that ran out.
    starved: Option<Vec<u64>>,
}

impl StreamPace {
    pub(crate) fn new(streams: usize, lead_max: u64) -> Arc<Self> {
        let progress = StreamProgress { served: vec![0; streams], starved: None };
        Arc::new(Self { progress: Mutex::new(progress), changed: Condvar::new(), lead_max })
    }

    /// Returns the number of served pages of each stream when an owner had waited for the slowest stream in vain.
    pub(crate) fn starved(&self) -> Option<Vec<u64>> {
        self.progress.lock().expect("no owner panics").starved.clone()
    }

    /// Counts a page that a stream is about to get. Waits while that is too far ahead.
    fn advance(&self, stream: usize) {
        let mut progress = self.progress.lock().expect("no owner panics");
        progress.served[stream] += 1;
        self.changed.notify_all();
        let is_ahead = |progress: &mut StreamProgress| {
            let slowest = progress.served.iter().min().expect("there are streams");
            progress.starved.is_none() && progress.served[stream] > slowest + self.lead_max
        };
        let (mut progress, wait) =
            self.changed.wait_timeout_while(progress, PACE_LIMIT, is_ahead).expect("no owner panics");
        if wait.timed_out() {
            progress.starved = Some(progress.served.clone());
            self.changed.notify_all();
        }
    }
}

/// A seed whose memory is computed when it is read.
pub(crate) struct TestSeed {
    pub(crate) id: SeedId,
    pub(crate) token: Token,
    pub(crate) pages: u64,
    /// The whole memory, computed in advance for measurements.
    ready: Vec<u8>,
    /// The pages that may be read; `None` for all pages.
    served: Option<BTreeSet<u64>>,
    /// Whether only single pages can be read.
    is_brittle: bool,
    /// The pace of its stream, and the number of the stream.
    pace: Option<(Arc<StreamPace>, usize)>,
    /// Its working set, from the reports of children.
    working_set: SharedWorkingSet,
    reports: AtomicU64,
    learner: LearnerThread,
}

impl TestSeed {
    pub(crate) fn new(pages: u64, ready: bool) -> Arc<Self> {
        Arc::new(Self::made(pages, ready))
    }

    /// Creates a seed of which only single pages can be read.
    pub(crate) fn brittle(pages: u64) -> Arc<Self> {
        Arc::new(Self { is_brittle: true, ..Self::made(pages, false) })
    }

    fn made(pages: u64, ready: bool) -> Self {
        Self {
            id: "n1.s00f3a96c5d217e84".parse().unwrap(),
            token: Token::from_bytes([7; 16]),
            pages,
            ready: if ready { (0..pages).flat_map(contents).collect() } else { Vec::new() },
            served: None,
            is_brittle: false,
            pace: None,
            working_set: SharedWorkingSet::default(),
            reports: AtomicU64::new(0),
            learner: LearnerThread::new(),
        }
    }

    /// Creates a seed that has only some of the pages. Panics at a read of another page, which was sent to the wrong
    /// seed.
    pub(crate) fn part(id: SeedId, token: Token, pages: u64, served: BTreeSet<u64>) -> Arc<Self> {
        Arc::new(Self { id, token, served: Some(served), ..Self::made(pages, false) })
    }

    /// Creates a seed whose owner keeps a common pace with the owners of other streams.
    pub(crate) fn paced(id: SeedId, pages: u64, pace: &Arc<StreamPace>, stream: usize) -> Arc<Self> {
        Arc::new(Self { id, pace: Some((pace.clone(), stream)), ..Self::made(pages, false) })
    }

    /// Returns the number of its pages that hold data.
    pub(crate) fn populated_pages(&self) -> u64 {
        (0..self.pages).filter(|page| is_populated(*page)).count() as u64
    }

    /// Returns the number of pages in its working set.
    pub(crate) fn set_pages(&self) -> u64 {
        self.working_set.page_count()
    }

    /// Returns the number of reports of children that have arrived.
    pub(crate) fn children_told(&self) -> u64 {
        self.reports.load(Ordering::Relaxed)
    }

    /// Returns a plan by which `program.c` gets this memory from `owner`.
    pub(crate) fn plan(&self, owner: farfork_fabric::Address, strategy: PagingStrategy) -> MemoryPlan {
        let mut populated: Vec<PageRun> = Vec::new();
        for page in (0..self.pages).filter(|page| is_populated(*page)) {
            match populated.last_mut() {
                Some(run) if run.first + run.count == page => run.count += 1,
                _ => populated.push(PageRun { first: page, count: 1 }),
            }
        }
        let end = AREA + self.pages * PAGE_SIZE;
        MemoryPlan {
            sources: vec![PageSource { seed: self.id.clone(), token: self.token, owner }],
            member_segments: Vec::new(),
            segments: vec![MapSegment { start: AREA, end, extent: EXTENT, first_page: 0 }],
            extents: vec![PopulatedExtent::from_own_seed(EXTENT, &populated)],
            strategy,
            is_zygote: false,
        }
    }
}

impl Region for TestSeed {
    fn extent_bytes(&self, extent: ExtentId) -> Option<u64> {
        match extent {
            EXTENT => Some(self.pages * PAGE_SIZE),
            ExtentId::DESCRIPTOR => Some(DESCRIPTOR.len() as u64),
            ExtentId::WORKING_SET => Some(self.working_set.encoded_bytes().len() as u64),
            _ => None,
        }
    }

    fn read(&self, extent: ExtentId, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let (first, end) = (offset as usize, offset as usize + into.len());
        if self.is_brittle && extent == EXTENT && into.len() as u64 > PAGE_SIZE {
            return Err(rustix::io::Errno::IO.into());
        }
        if extent == ExtentId::WORKING_SET {
            self.working_set.read(offset, into);
        } else if extent == ExtentId::DESCRIPTOR {
            into.copy_from_slice(&DESCRIPTOR[first..end]);
        } else if let Some(ready) = self.ready.get(first..end) {
            into.copy_from_slice(ready);
        } else {
            for (index, page) in into.chunks_mut(PAGE_SIZE as usize).enumerate() {
                let number = offset / PAGE_SIZE + index as u64;
                assert!(is_populated(number), "page {number} has no data and is requested");
                let is_served = self.served.as_ref().is_none_or(|served| served.contains(&number));
                assert!(is_served, "page {number} is another seed's");
                self.pace.iter().for_each(|(pace, stream)| pace.advance(*stream));
                page.copy_from_slice(&contents(number));
            }
        }
        Ok(())
    }

    fn local_template(&self) -> Option<LocalTemplate> {
        None
    }
}

/// The exports of a node that has this seed, or has dropped it.
struct Exports {
    id: SeedId,
    token: Token,
    seed: Option<Arc<TestSeed>>,
    dropped: AtomicBool,
}

impl Exports {
    fn of(seed: &Arc<TestSeed>, has: Option<Arc<TestSeed>>) -> Arc<Self> {
        Arc::new(Self { id: seed.id.clone(), token: seed.token, seed: has, dropped: AtomicBool::new(false) })
    }
}

impl Exporter for Exports {
    fn open_region(&self, seed: &SeedId, token: &Token) -> Result<Arc<dyn Region>, Refusal> {
        if self.dropped.load(Ordering::Relaxed) {
            sleep(REFUSAL_DELAY);
            return Err(Refusal::UnknownSeed);
        }
        match &self.seed {
            Some(known) if *seed == self.id && *token == self.token => Ok(known.clone()),
            Some(_) if *seed == self.id => Err(Refusal::WrongToken),
            _ => Err(Refusal::UnknownSeed),
        }
    }

    fn deliver_message(&self, _: &str, message: &[u8]) -> Result<(), Refusal> {
        let report = AccessReport::decode_set(message).expect("a report");
        if let Some(seed) = &self.seed {
            assert_eq!((&report.seed, report.token), (&seed.id, seed.token));
            let known = seed.clone();
            let is_taken = seed.learner.submit(move || {
                known.working_set.apply_report(&report, |extent, page| extent == EXTENT && is_populated(page));
                known.reports.fetch_add(1, Ordering::Relaxed);
            });
            assert!(is_taken, "the learner has room for reports");
        }
        Ok(())
    }
}

/// Starts an owner on the same host, with its socket at `path`. It runs until it is dropped. Pagers cannot read its
/// memory directly.
pub(crate) fn start_on_host(path: &Path, seed: &Arc<TestSeed>) -> shm::ShmServer {
    let exports: Arc<dyn Exporter> = Exports::of(seed, Some(seed.clone()));
    shm::ShmServer::start(UnixListener::bind(path).expect("a socket can be made"), &exports).expect("an owner starts")
}

/// The owner of a seed, until it is dropped.
pub(crate) struct Owner {
    server: tcp::TcpServer,
    exports: Arc<Exports>,
}

impl Owner {
    /// Starts an owner on a free port.
    pub(crate) fn start(seed: &Arc<TestSeed>) -> Self {
        Self::serve("127.0.0.1:0".parse().unwrap(), seed, Some(seed.clone()))
    }

    /// Starts an owner on the port of a previous owner. It has the seed, or has lost it.
    pub(crate) fn restart(address: SocketAddr, seed: &Arc<TestSeed>, has_it: bool) -> Self {
        Self::serve(address, seed, has_it.then(|| seed.clone()))
    }

    fn serve(address: SocketAddr, seed: &Arc<TestSeed>, has: Option<Arc<TestSeed>>) -> Self {
        let listener = TcpListener::bind(address).expect("the owner's port is free");
        let exports = Exports::of(seed, has);
        let exported: Arc<dyn Exporter> = exports.clone();
        Self { server: tcp::TcpServer::start(listener, &exported).expect("an owner starts"), exports }
    }

    /// Drops the seed. Connections stay open, and refusals are delayed (`REFUSAL_DELAY`).
    pub(crate) fn drop_seed(&self) {
        self.exports.dropped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn address(&self) -> farfork_fabric::Address {
        self.server.address()
    }

    pub(crate) fn socket_address(&self) -> SocketAddr {
        match self.address() {
            farfork_fabric::Address::Tcp(address) => address,
            other => panic!("{other} is not of tcp"),
        }
    }
}
