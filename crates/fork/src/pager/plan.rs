//! The memory plan: what the pager must know to serve a child. The daemon writes it into the child's directory, where
//! every pager that serves the child, the first and those after a crash, reads it.
//!
//! ```text
//!  pager.plan, mode 0600: it holds the seed's token
//!  0            8
//!  ┌────────────┬──────────────────────┐
//!  │ FFPLAN2\n  │ MemoryPlan, postcard │   at most PLAN_BYTES_MAX
//!  └────────────┴──────────────────────┘
//! ```

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use farfork_fabric::Address;
use farfork_wire::descriptor::{Backing, Descriptor, ExtentId, PageRun, USER_SPACE_END};
use farfork_wire::{PAGE_SIZE, SeedId, Token};
use serde::{Deserialize, Serialize};

use super::page_map::Segment;
use super::strategy::Strategy;

/// Name of the file in the child's directory.
pub const PLAN_FILE: &str = "pager.plan";

/// Longest plan, in bytes: as much as a descriptor, of which it is a part.
const PLAN_BYTES_MAX: u64 = farfork_wire::descriptor::DESCRIPTOR_BYTES_MAX as u64;

/// Most pages that hold data: 4 TiB, more than a node has. The pager keeps some bits for each.
const POPULATED_PAGES_MAX: u64 = 1 << 30;

const MAGIC: &[u8; 8] = b"FFPLAN2\n";

/// What a child's pages come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPlan {
    /// The seed whose pages they are.
    pub seed: SeedId,
    /// What opens it.
    pub token: Token,
    /// Where its owner is reached.
    #[serde(with = "address_text")]
    pub owner: Address,
    /// Which addresses show which pages, ascending. Registered memory outside of them reads as zeroes.
    pub segments: Vec<Segment>,
    /// The pages that hold data, by extent, ascending.
    pub extents: Vec<PlannedExtent>,
    /// How the child's pages are fetched.
    pub strategy: Strategy,
}

/// The pages of an extent that hold data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedExtent {
    /// The extent.
    pub id: ExtentId,
    /// Its pages, as the descriptor has them.
    pub populated: Vec<PageRun>,
}

/// Why there is no usable plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The file cannot be written.
    #[error("{} cannot be written: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is no plan, or one that makes no sense.
    #[error("{} is no memory plan: {what}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

impl MemoryPlan {
    /// The plan for a child made of `descriptor`, which is valid, and in which these ranges of addresses (ascending)
    /// are registered with userfaultfd.
    pub fn from_descriptor(
        descriptor: &Descriptor,
        seed: SeedId,
        token: Token,
        owner: Address,
        registered: &[Range<u64>],
        strategy: Strategy,
    ) -> Self {
        let mut segments = Vec::new();
        for mapping in &descriptor.mappings {
            let (Backing::Anonymous { extent: Some(extent) } | Backing::PrivateFile { extent, .. }) = mapping.backing
            else {
                continue;
            };
            let behind = registered.partition_point(|range| range.end <= mapping.start);
            for range in registered[behind..].iter().take_while(|range| range.start < mapping.end) {
                let (start, end) = (range.start.max(mapping.start), range.end.min(mapping.end));
                segments.push(Segment { start, end, extent, first_page: (start - mapping.start) / PAGE_SIZE });
            }
        }
        let mut ids: Vec<ExtentId> = segments.iter().map(|segment| segment.extent).collect();
        ids.sort_unstable();
        ids.dedup();
        let populated = |id: ExtentId| descriptor.extents[id.0 as usize].populated.clone();
        let extents = ids.into_iter().map(|id| PlannedExtent { id, populated: populated(id) }).collect();
        Self { seed, token, owner, segments, extents, strategy }
    }

    /// Memory that holds data and that the child sees, in bytes: what there is to fetch.
    pub fn populated_bytes(&self) -> u64 {
        let pages_of = |segment: &Segment| {
            let (first, last) = (segment.first_page, segment.first_page + (segment.end - segment.start) / PAGE_SIZE);
            let extent = self.extents.iter().find(|extent| extent.id == segment.extent);
            let runs = extent.into_iter().flat_map(|extent| &extent.populated);
            runs.map(|run| (run.first + run.count).min(last).saturating_sub(run.first.max(first))).sum::<u64>()
        };
        self.segments.iter().map(pages_of).sum::<u64>() * PAGE_SIZE
    }

    /// Writes the plan into the child's directory, whole or not at all.
    ///
    /// # Errors
    /// [`PlanError::Write`].
    pub fn write(&self, child_dir: &Path) -> Result<(), PlanError> {
        let path = child_dir.join(PLAN_FILE);
        let aside = child_dir.join("pager.plan.new");
        let written = postcard::to_extend(self, MAGIC.to_vec()).map_err(io::Error::other).and_then(|bytes| {
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside)?.write_all(&bytes)?;
            fs::rename(&aside, &path)
        });
        written.map_err(|source| PlanError::Write { path, source })
    }

    /// Reads the plan from the child's directory.
    ///
    /// # Errors
    /// [`PlanError::Read`]; [`PlanError::Invalid`] for a file of another format, or a plan that makes no sense.
    pub fn read(child_dir: &Path) -> Result<Self, PlanError> {
        let path = child_dir.join(PLAN_FILE);
        let invalid = |what: String| PlanError::Invalid { path: path.clone(), what };
        let read = || {
            let bytes = fs::metadata(&path)?.len();
            if bytes <= PLAN_BYTES_MAX { fs::read(&path) } else { Err(io::ErrorKind::FileTooLarge.into()) }
        };
        let bytes = read().map_err(|source| PlanError::Read { path: path.clone(), source })?;
        Self::decode(&bytes).map_err(invalid)
    }

    /// Reads the plan from the bytes of its file.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let body = bytes.strip_prefix(MAGIC).ok_or("its first bytes are of another format")?;
        let plan: Self = postcard::from_bytes(body).map_err(|error| error.to_string())?;
        plan.check()?;
        Ok(plan)
    }

    fn check(&self) -> Result<(), String> {
        let mut lowest = 0;
        for segment in &self.segments {
            let whole = segment.start % PAGE_SIZE == 0 && segment.end % PAGE_SIZE == 0;
            let in_order = segment.start >= lowest && segment.start < segment.end && segment.end <= USER_SPACE_END;
            let countable = segment.first_page < USER_SPACE_END / PAGE_SIZE;
            if !(whole && in_order && countable) {
                return Err(format!("segment {:#x}-{:#x} is out of order", segment.start, segment.end));
            }
            lowest = segment.end;
        }
        if !self.extents.windows(2).all(|pair| pair[0].id < pair[1].id) {
            return Err("its extents are out of order".into());
        }
        let pages = self.extents.iter().try_fold(0, |sum: u64, extent| Ok::<_, String>(sum + extent.check()?))?;
        if pages > POPULATED_PAGES_MAX {
            return Err(format!("{pages} pages hold data, {POPULATED_PAGES_MAX} at most"));
        }
        Ok(())
    }
}

impl PlannedExtent {
    /// Checks its runs; gives the number of their pages.
    fn check(&self) -> Result<u64, String> {
        let (mut lowest, mut pages) = (0, 0);
        for run in &self.populated {
            let end = run.first.checked_add(run.count).filter(|end| *end <= USER_SPACE_END / PAGE_SIZE);
            match end {
                Some(end) if run.first >= lowest && run.count > 0 => lowest = end,
                _ => return Err(format!("the pages of extent {} are out of order", self.id.0)),
            }
            pages += run.count;
        }
        Ok(pages)
    }
}

/// An address, as text.
mod address_text {
    use farfork_fabric::Address;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(address: &Address, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(address)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Address, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> MemoryPlan {
        let segment = |start, pages, extent, first_page| Segment {
            start,
            end: start + pages * PAGE_SIZE,
            extent: ExtentId(extent),
            first_page,
        };
        MemoryPlan {
            seed: "n1.s00f3a96c5d217e84".parse().unwrap(),
            token: Token::from_bytes([7; 16]),
            owner: "tcp:127.0.0.1:7001".parse().unwrap(),
            segments: vec![segment(0x10000, 4, 3, 0), segment(0x20000, 2, 0, 5)],
            extents: vec![
                PlannedExtent { id: ExtentId(0), populated: vec![] },
                PlannedExtent { id: ExtentId(3), populated: vec![PageRun { first: 1, count: 2 }] },
            ],
            strategy: Strategy::default(),
        }
    }

    #[test]
    fn a_plan_survives_its_file_which_only_the_owner_reads() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        plan().write(dir.path()).unwrap();
        assert_eq!(MemoryPlan::read(dir.path()).unwrap(), plan());
        let mode = fs::metadata(dir.path().join(PLAN_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn nonsense_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(MemoryPlan::read(dir.path()), Err(PlanError::Read { .. })));
        let mut overlapping = plan();
        overlapping.segments[1].start = 0x13000;
        let mut unordered = plan();
        unordered.extents.reverse();
        let mut empty_run = plan();
        empty_run.extents[1].populated[0].count = 0;
        let mut too_many = plan();
        too_many.extents[1].populated[0].count = POPULATED_PAGES_MAX + 1;
        for wrong in [overlapping, unordered, empty_run, too_many] {
            wrong.write(dir.path()).unwrap();
            assert!(matches!(MemoryPlan::read(dir.path()), Err(PlanError::Invalid { .. })));
        }
        fs::write(dir.path().join(PLAN_FILE), b"something else").unwrap();
        assert!(matches!(MemoryPlan::read(dir.path()), Err(PlanError::Invalid { .. })));
    }
}
