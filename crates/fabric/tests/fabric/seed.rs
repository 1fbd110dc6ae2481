//! The exports of a test's owner: the memory of an idle process in place of a template, registered memory, and a
//! message queue.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use farfork_fabric::{Exporter, LocalTemplate, MessageQueue, Refusal, Region, RegionRegistry, SeedKey, TemplateMemory};
use farfork_sys::pidfd;
use farfork_wire::descriptor::ExtentId;
use farfork_wire::{NodeName, SeedId, Token};

/// Number of pages of the template's memory. Page N is filled with N as a 64-bit number.
pub(crate) const PAGES: u64 = 600;
/// The page that is mapped without access rights (PROT_NONE) in the template.
pub(crate) const PROTECTED_PAGE: u64 = 5;
pub(crate) const PAGE: u64 = 4096;
/// The extent in the template's memory.
pub(crate) const MEMORY: ExtentId = ExtentId(0);
/// An extent that the owner holds as a copy.
pub(crate) const COPY: ExtentId = ExtentId(1);
/// Length of the copy, in bytes: not a multiple of the page size.
pub(crate) const COPY_BYTES: u64 = 300_001;
/// Length of the descriptor, in bytes: longer than the largest read.
pub(crate) const DESCRIPTOR_BYTES: usize = 2_500_000;
const SCRIPT: &str = "
import ctypes, mmap, sys
pages, protected = int(sys.argv[1]), int(sys.argv[2])
memory = mmap.mmap(-1, pages * 4096)
for page in range(pages):
    memory[page * 4096 : (page + 1) * 4096] = page.to_bytes(8, 'little') * 512
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + protected * 4096), ctypes.c_size_t(4096), 0)
print(address, flush=True)
sys.stdin.read()
";

/// An idle process with known memory, as a template.
pub(crate) struct Template {
    child: Mutex<Child>,
    pidfd: OwnedFd,
    memory: TemplateMemory,
    address: u64,
}

impl Template {
    pub(crate) fn start() -> Self {
        let mut child = Command::new("python3")
            .args(["-c", SCRIPT, &PAGES.to_string(), &PROTECTED_PAGE.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pidfd = pidfd::open(child.id() as i32).unwrap();
        let memory = TemplateMemory::new(pidfd.try_clone().unwrap()).unwrap();
        Self { child: Mutex::new(child), pidfd, memory, address: line.trim().parse().unwrap() }
    }

    pub(crate) fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the expected `bytes` of an extent at `offset`.
pub(crate) fn expected(extent: ExtentId, offset: u64, bytes: u64) -> Vec<u8> {
    let at = |position: u64| match extent {
        MEMORY => (position / PAGE).to_le_bytes()[(position % 8) as usize],
        COPY => (position * 7 % 251) as u8,
        _ => (position * 11 % 241) as u8,
    };
    (offset..offset + bytes).map(at).collect()
}

/// A seed: the template's memory, a copy, and a descriptor.
pub(crate) struct Seed {
    pub(crate) template: Template,
    copy: Vec<u8>,
    descriptor: Vec<u8>,
    /// Number of reads by the owner.
    pub(crate) reads: AtomicU64,
    /// Number of bytes that the owner has read.
    pub(crate) bytes: AtomicU64,
}

impl Seed {
    pub(crate) fn start() -> Arc<Self> {
        Arc::new(Self {
            template: Template::start(),
            copy: expected(COPY, 0, COPY_BYTES),
            descriptor: expected(ExtentId::DESCRIPTOR, 0, DESCRIPTOR_BYTES as u64),
            reads: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    fn held(&self, extent: ExtentId) -> Option<&[u8]> {
        match extent {
            COPY => Some(&self.copy),
            ExtentId::DESCRIPTOR => Some(&self.descriptor),
            _ => None,
        }
    }
}

impl Region for Seed {
    fn extent_bytes(&self, extent: ExtentId) -> Option<u64> {
        if extent == MEMORY { Some(PAGES * PAGE) } else { self.held(extent).map(|bytes| bytes.len() as u64) }
    }

    fn read(&self, extent: ExtentId, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(into.len() as u64, Ordering::Relaxed);
        match self.held(extent) {
            Some(bytes) => into.copy_from_slice(&bytes[offset as usize..offset as usize + into.len()]),
            None => self.template.memory.read(self.template.address + offset, into)?,
        }
        Ok(())
    }

    fn local_template(&self) -> Option<LocalTemplate> {
        let template = self.template.pidfd.try_clone().ok()?;
        Some(LocalTemplate { template, extents: vec![(MEMORY, self.template.address)] })
    }
}

/// The exports of an owner.
pub(crate) struct Seeds {
    seeds: Mutex<HashMap<SeedId, (Token, Arc<Seed>)>>,
    /// Registered memory, and the message queue.
    pub(crate) registry: Arc<RegionRegistry>,
    pub(crate) inbox: Arc<MessageQueue>,
}

impl Default for Seeds {
    fn default() -> Self {
        let inbox = Arc::new(MessageQueue::new().unwrap());
        Self { seeds: Mutex::default(), registry: RegionRegistry::new(Some(Arc::clone(&inbox))), inbox }
    }
}

impl Seeds {
    pub(crate) fn add(&self, key: &SeedKey, seed: &Arc<Seed>) {
        self.seeds.lock().unwrap().insert(key.seed.clone(), (key.token, Arc::clone(seed)));
    }

    pub(crate) fn remove(&self, key: &SeedKey) {
        self.seeds.lock().unwrap().remove(&key.seed);
    }
}

impl Exporter for Seeds {
    fn open_region(&self, seed: &SeedId, token: &Token) -> Result<Arc<dyn Region>, Refusal> {
        let seeds = self.seeds.lock().unwrap();
        let Some((secret, region)) = seeds.get(seed) else { return self.registry.open_region(seed, token) };
        if secret == token { Ok(Arc::clone(region) as Arc<dyn Region>) } else { Err(Refusal::WrongToken) }
    }

    fn deliver_message(&self, from: &str, message: &[u8]) -> Result<(), Refusal> {
        self.registry.deliver_message(from, message)
    }
}

pub(crate) fn key(number: u64) -> Arc<SeedKey> {
    let seed = SeedId::new(NodeName::new("n1").unwrap(), number);
    Arc::new(SeedKey { seed, token: Token::from_bytes([number as u8; 16]) })
}
