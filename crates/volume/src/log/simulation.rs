//! A seeded simulation of appends, flushes, publishing and crashes. Replay always gives a prefix of the records that
//! were appended, and every acknowledged one.

use fastrand::Rng;

use super::{LogAppender, LogPoint, LogStorage, RING_OFFSET, file_offset};
use crate::record::{InodeNumber, PAGE_BYTES, RecordEffect};
use crate::replay::LogReplay;

const SEEDS: u64 = 1_000;
/// Size of a sector in bytes. A disk writes a sector whole or not at all.
const SECTOR_BYTES: usize = 512;
/// Size of the ring. It is smaller than a real ring may be, so that the log often continues at the start of the ring.
const RING_BYTES: u64 = 16 * PAGE_BYTES;
const MOUNTS_PER_SEED: u32 = 6;
const STEPS_PER_MOUNT: u32 = 40;

/// The memory of a machine, which survives the death of a process, and its disk, which survives a power failure.
struct SimulatedDisk {
    memory: Vec<u8>,
    disk: Vec<u8>,
    /// Number of bytes that can be stored until the process is killed.
    bytes_until_kill: Option<usize>,
}

impl LogStorage for SimulatedDisk {
    fn store(&mut self, offset: u64, bytes: &[u8]) {
        let stored = self.bytes_until_kill.map_or(bytes.len(), |left| left.min(bytes.len()));
        if let Some(left) = &mut self.bytes_until_kill {
            *left -= stored;
        }
        self.memory[offset as usize..][..stored].copy_from_slice(&bytes[..stored]);
    }

    fn load(&self, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.memory[offset as usize..][..into.len()]);
    }
}

impl SimulatedDisk {
    fn new() -> Self {
        let bytes = (RING_OFFSET + RING_BYTES) as usize;
        Self { memory: vec![0; bytes], disk: vec![0; bytes], bytes_until_kill: None }
    }

    fn flush(&mut self) {
        self.disk.copy_from_slice(&self.memory);
    }

    /// Keeps of each sector either the version in memory or the version on disk.
    fn fail_power(&mut self, random: &mut Rng) {
        let chance = random.f32();
        for (memory, disk) in self.memory.chunks_mut(SECTOR_BYTES).zip(self.disk.chunks(SECTOR_BYTES)) {
            if random.f32() < chance {
                memory.copy_from_slice(disk);
            }
        }
        self.flush();
    }
}

/// A record as it was appended.
#[derive(Clone, Debug, PartialEq)]
struct AppendedState {
    effects: Vec<RecordEffect>,
    data: Vec<u8>,
    end: LogPoint,
}

struct LogSimulation {
    random: Rng,
    storage: Option<SimulatedDisk>,
    /// All records that survived, in order.
    history: Vec<AppendedState>,
    /// The number of acknowledged records.
    acknowledged: usize,
    /// The number of published records.
    published: usize,
    epoch: u32,
    /// Epoch of the last published record.
    published_epoch: u32,
}

#[derive(Clone, Copy, PartialEq)]
enum CrashKind {
    ProcessKill,
    PowerFailure,
    BitFlip,
}

impl LogSimulation {
    fn new(seed: u64) -> Self {
        let random = Rng::with_seed(seed);
        let storage = Some(SimulatedDisk::new());
        Self { random, storage, history: Vec::new(), acknowledged: 0, published: 0, epoch: 0, published_epoch: 0 }
    }

    fn point_after(&self, records: usize) -> LogPoint {
        if records == 0 { LogPoint::START } else { self.history[records - 1].end }
    }

    /// Runs one mount: appends until the client is killed.
    fn mount(&mut self) {
        self.epoch += 1;
        let start = self.point_after(self.published);
        assert_eq!(self.published, self.history.len(), "a mount publishes everything first");
        let mut log = LogAppender::new(self.storage.take().unwrap(), RING_BYTES, self.epoch, start);
        let kind = [CrashKind::ProcessKill, CrashKind::PowerFailure, CrashKind::BitFlip][self.random.usize(..3)];
        for _ in 0..self.random.u32(..STEPS_PER_MOUNT) {
            match self.random.u32(..10) {
                0 => {
                    log.storage_mut().flush();
                    self.acknowledged = self.history.len();
                }
                1 | 2 if self.acknowledged > self.published => {
                    let published = self.random.usize(self.published..=self.acknowledged);
                    if published > self.published {
                        self.published_epoch = self.epoch;
                    }
                    self.published = published;
                    log.advance_tail(self.point_after(self.published));
                }
                _ => self.append(&mut log),
            }
        }
        if kind == CrashKind::ProcessKill {
            // Records in memory are acknowledged without a flush, because they survive a kill.
            self.acknowledged = self.history.len();
            log.storage_mut().bytes_until_kill = Some(self.random.usize(..5000));
            self.append(&mut log);
        }
        let mut storage = std::mem::replace(log.storage_mut(), SimulatedDisk::new());
        storage.bytes_until_kill = None;
        if kind == CrashKind::PowerFailure {
            storage.fail_power(&mut self.random);
        }
        self.storage = Some(storage);
        self.recover(kind);
    }

    fn append(&mut self, log: &mut LogAppender<SimulatedDisk>) {
        // Few sizes, so that a record often ends where an old one did.
        let length = [8, 8, 100, 4096, 4096, self.random.usize(1..9000)][self.random.usize(..6)];
        let data: Vec<u8> = std::iter::repeat_with(|| self.random.u8(..)).take(length).collect();
        let (inode, offset) = (InodeNumber(self.random.u64(2..100)), self.random.u64(1 << 20..1 << 21));
        let effects = vec![RecordEffect::WriteData { inode, offset, bytes: length as u32 }];
        if let Ok(appended) = log.append(&effects, &data) {
            // A filler is a record without effects.
            while self.point_after(self.history.len()).sequence + 1 < appended.end.sequence {
                let point = self.point_after(self.history.len());
                let end = LogPoint {
                    sequence: point.sequence + 1,
                    position: point.position.next_multiple_of(RING_BYTES).max(point.position),
                };
                self.history.push(AppendedState { effects: Vec::new(), data: Vec::new(), end });
            }
            self.history.push(AppendedState { effects, data, end: appended.end });
        }
    }

    /// Replays as the next mount does, compares the records with the appended ones, and publishes them.
    fn recover(&mut self, kind: CrashKind) {
        let mut storage = self.storage.take().unwrap();
        let mut has_flip = false;
        if kind == CrashKind::BitFlip {
            let bit = self.random.usize(RING_OFFSET as usize * 8..storage.memory.len() * 8);
            storage.memory[bit / 8] ^= 1 << (bit % 8);
            has_flip = true;
        }
        let mut replay = LogReplay::new(RING_BYTES, self.point_after(self.published), self.published_epoch);
        let mut survived = self.published;
        while let Ok(record) = replay.read_record(&storage) {
            let expected = self.history.get(survived).expect("replay invents no record");
            assert_eq!((&record.effects, record.end), (&expected.effects, expected.end), "record {survived}");
            let mut data = vec![0; expected.data.len()];
            storage.load(file_offset(record.data_position, RING_BYTES), &mut data);
            assert!(data == expected.data, "the data of record {survived} differs");
            survived += 1;
            self.published_epoch = record.epoch;
        }
        assert!(has_flip || survived >= self.acknowledged, "{survived} of {} survive", self.acknowledged);
        self.history.truncate(survived);
        self.acknowledged = survived;
        self.published = survived;
        storage.flush();
        self.storage = Some(storage);
    }
}

#[test]
fn replay_gives_a_prefix_with_everything_that_was_acknowledged() {
    let mut records = 0;
    for seed in 0..SEEDS {
        let mut simulation = LogSimulation::new(seed);
        for _ in 0..MOUNTS_PER_SEED {
            simulation.mount();
        }
        records += simulation.history.len();
    }
    assert!(records > 10_000, "only {records} records survived: the simulation does too little");
}
