//! The memory plan: all that the pager must know to serve a child. The daemon writes the plan into the child's
//! directory. Every pager that serves the child reads the plan, also a pager that replaces another.

pub(super) mod origin;
pub(super) mod slot_index;
pub(super) mod strategy;

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::iter;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::{Backing, Descriptor, Extent, ExtentId, Mapping, PROCESSES_MAX, USER_SPACE_END};
use serde::{Deserialize, Serialize};

use super::page_map::MapSegment;
use origin::{PageOrigin, PageSource, PopulatedExtent, PopulatedRun, SOURCES_MAX};
use strategy::PagingStrategy;

/// Name of the file in the child's directory.
pub const PLAN_FILE: &str = "pager.plan";

/// Name of the file in a zygote's directory with the plan of all its copies. Each copy's directory has a hard link to
/// this file.
const COPIES_PLAN_FILE: &str = "pager.plan.copies";

/// Maximum length of a plan, in bytes: as long as a descriptor, because a plan contains a part of the descriptor.
const PLAN_BYTES_MAX: u64 = farfork_wire::descriptor::DESCRIPTOR_BYTES_MAX as u64;

/// Maximum number of pages that hold data: 4 TiB, more than the memory of a node. The pager keeps a few bits for each
/// page.
const POPULATED_PAGES_MAX: u64 = 1 << 30;

pub(super) const MAGIC: &[u8; 8] = b"FFPLAN5\n";

/// The pages of a child: their addresses, their origin, and how they are fetched.
///
/// ```text
///  pager.plan, mode 0600: it holds the seeds' tokens
///  0            8
///  ┌────────────┬──────────────────────┐
///  │ FFPLAN5\n  │ MemoryPlan, postcard │   at most PLAN_BYTES_MAX
///  └────────────┴──────────────────────┘
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPlan {
    /// The seeds that own the pages: the child's own first, then those that it inherits from.
    pub sources: Vec<PageSource>,
    /// Which addresses of the child's first process show which pages, ascending. Other registered memory reads as zeroes.
    pub segments: Vec<MapSegment>,
    /// As `segments`, for each further process.
    pub member_segments: Vec<Vec<MapSegment>>,
    /// The pages that hold data, by extent, ascending.
    pub extents: Vec<PopulatedExtent>,
    /// How the child's pages are fetched.
    pub strategy: PagingStrategy,
    /// Whether this is the plan of a zygote, whose forks become separate children.
    pub is_zygote: bool,
}

/// Why a plan cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The file cannot be written.
    #[error("{} cannot be written: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is not a plan, or its contents are invalid.
    #[error("{} is not a valid memory plan: {what}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The reason.
        what: String,
    },
}

impl MemoryPlan {
    /// Creates the plan for a child of `descriptor`, which must be valid. `sources` has the child's seed, and then one
    /// source for each layer of the descriptor. `registered` has the ranges of each process that are registered with
    /// userfaultfd, ascending.
    pub fn from_descriptor(
        descriptor: &Descriptor,
        sources: Vec<PageSource>,
        registered: &[&[Range<u64>]],
        strategy: PagingStrategy,
    ) -> Self {
        let maps = iter::once(&descriptor.mappings).chain(descriptor.descendants.iter().map(|member| &member.mappings));
        let mut spaces = maps.zip(registered).map(|(mappings, registered)| registered_segments(mappings, registered));
        let segments = spaces.next().unwrap_or_default();
        let members: Vec<Vec<MapSegment>> = spaces.collect();
        let all = segments.iter().chain(members.iter().flatten());
        let mut ids: Vec<ExtentId> = all.map(|segment| segment.extent).collect();
        ids.sort_unstable();
        ids.dedup();
        let populated = |id: ExtentId| populated_runs(id, &descriptor.extents[id.0 as usize]);
        let extents = ids.into_iter().map(|id| PopulatedExtent { id, populated: populated(id) }).collect();
        Self { sources, segments, member_segments: members, extents, strategy, is_zygote: false }
    }

    /// Returns the size in bytes of the mapped memory that holds data: the most that may have to be fetched.
    pub fn populated_bytes(&self) -> u64 {
        let pages_of = |segment: &MapSegment| {
            let (first, last) = (segment.first_page, segment.first_page + (segment.end - segment.start) / PAGE_SIZE);
            let extent = self.extents.iter().find(|extent| extent.id == segment.extent);
            let runs = extent.into_iter().flat_map(|extent| &extent.populated);
            runs.map(|run| (run.first + run.count).min(last).saturating_sub(run.first.max(first))).sum::<u64>()
        };
        self.segments.iter().chain(self.member_segments.iter().flatten()).map(pages_of).sum::<u64>() * PAGE_SIZE
    }

    /// Writes the plan into the child's directory. Must be called before the pager adopts the child, so that the pager
    /// reads a complete plan.
    ///
    /// # Errors
    /// [`PlanError::Write`].
    pub fn write(&self, child_dir: &Path) -> Result<(), PlanError> {
        self.write_file(child_dir, PLAN_FILE)
    }

    /// Writes the plan of a zygote's copies into the zygote's directory. Must be called before the pager adopts the zygote.
    ///
    /// # Errors
    /// [`PlanError::Write`].
    pub fn write_for_copies(&self, zygote_dir: &Path) -> Result<(), PlanError> {
        self.write_file(zygote_dir, COPIES_PLAN_FILE)
    }

    /// Links the plan of a zygote's copies into the directory of one copy.
    ///
    /// # Errors
    /// [`PlanError::Write`].
    pub fn link_for_copy(zygote_dir: &Path, child_dir: &Path) -> Result<(), PlanError> {
        let path = child_dir.join(PLAN_FILE);
        fs::hard_link(zygote_dir.join(COPIES_PLAN_FILE), &path).map_err(|source| PlanError::Write { path, source })
    }

    fn write_file(&self, child_dir: &Path, name: &str) -> Result<(), PlanError> {
        let path = child_dir.join(name);
        let create = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let written = self.encode().and_then(|bytes| {
            let mut file = match create() {
                // An attempt to make a copy failed and left a link to the plan that other copies share. Remove the link
                // instead of overwriting the plan.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    fs::remove_file(&path)?;
                    create()?
                }
                made => made?,
            };
            file.write_all(&bytes)
        });
        written.map_err(|source| PlanError::Write { path, source })
    }

    /// Reads the plan from the child's directory.
    ///
    /// # Errors
    /// [`PlanError::Read`]; [`PlanError::Invalid`] for a file of another format, or an invalid plan.
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

    /// Encodes the plan as the bytes of its file.
    ///
    /// # Errors
    /// Never for a plan that [`Self::decode`] accepts.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        postcard::to_extend(self, MAGIC.to_vec()).map_err(io::Error::other)
    }

    /// Decodes the plan from the bytes of its file.
    ///
    /// # Errors
    /// The reason why the bytes are invalid.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let body = bytes.strip_prefix(MAGIC).ok_or("its first bytes are not those of a memory plan")?;
        let plan: Self = postcard::from_bytes(body).map_err(|error| error.to_string())?;
        plan.validate()?;
        Ok(plan)
    }

    fn validate(&self) -> Result<(), String> {
        validate_segments(&self.segments)?;
        self.member_segments.iter().try_for_each(|segments| validate_segments(segments))?;
        if self.member_segments.len() >= PROCESSES_MAX {
            return Err(format!("it has too many processes: {} besides the first", self.member_segments.len()));
        }
        if !self.extents.windows(2).all(|pair| pair[0].id < pair[1].id) {
            return Err("its extents are not in ascending order".into());
        }
        let sources = self.sources.len();
        if !(1..=SOURCES_MAX).contains(&sources) {
            return Err(format!("it has {sources} sources, the limit is {SOURCES_MAX}"));
        }
        let pages =
            self.extents.iter().try_fold(0, |sum: u64, extent| Ok::<_, String>(sum + extent.validate(sources)?))?;
        if pages > POPULATED_PAGES_MAX {
            return Err(format!("it has {pages} populated pages, the limit is {POPULATED_PAGES_MAX}"));
        }
        Ok(())
    }
}

/// Identifies the file of a plan while the file exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlanFileId {
    device: u64,
    inode: u64,
}

impl PlanFileId {
    /// Returns the id of the plan file of a zygote's copies, if there is one.
    pub(super) fn for_copies(zygote_dir: &Path) -> Option<Self> {
        Self::for_file(&zygote_dir.join(COPIES_PLAN_FILE))
    }

    /// Returns the id of a child's plan file.
    pub(super) fn for_child(child_dir: &Path) -> Option<Self> {
        Self::for_file(&child_dir.join(PLAN_FILE))
    }

    fn for_file(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        Some(Self { device: found.dev(), inode: found.ino() })
    }
}

/// Returns the segments of the registered parts of mappings.
fn registered_segments(mappings: &[Mapping], registered: &[Range<u64>]) -> Vec<MapSegment> {
    let mut segments = Vec::new();
    for mapping in mappings {
        let (Backing::Anonymous { extent: Some(extent) }
        | Backing::PrivateFile { extent, .. }
        | Backing::PrivateWritableFile { extent, .. }) = mapping.backing
        else {
            continue;
        };
        let first = registered.partition_point(|range| range.end <= mapping.start);
        for range in registered[first..].iter().take_while(|range| range.start < mapping.end) {
            let (start, end) = (range.start.max(mapping.start), range.end.min(mapping.end));
            segments.push(MapSegment { start, end, extent, first_page: (start - mapping.start) / PAGE_SIZE });
        }
    }
    segments
}

/// Returns all pages of an extent that hold data: the seed's own pages and the pages that it inherits.
fn populated_runs(id: ExtentId, extent: &Extent) -> Vec<PopulatedRun> {
    let mut runs: Vec<PopulatedRun> = extent.populated.iter().map(|run| PopulatedRun::from_own_seed(id, run)).collect();
    runs.extend(extent.inherited.iter().map(|run| {
        let origin = PageOrigin { source: run.layer + 1, extent: run.extent, page: run.layer_page };
        PopulatedRun { first: run.first, count: run.count, origin }
    }));
    runs.sort_unstable_by_key(|run| run.first);
    runs
}

/// Checks that segments are whole pages of user space, in ascending order.
///
/// # Errors
/// The first segment that is invalid.
pub(super) fn validate_segments(segments: &[MapSegment]) -> Result<(), String> {
    let mut lowest = 0;
    for segment in segments {
        let whole = segment.start % PAGE_SIZE == 0 && segment.end % PAGE_SIZE == 0;
        let in_order = segment.start >= lowest && segment.start < segment.end && segment.end <= USER_SPACE_END;
        let countable = segment.first_page < USER_SPACE_END / PAGE_SIZE;
        if !(whole && in_order && countable) {
            return Err(format!(
                "segment {:#x}-{:#x} is unaligned, out of range or not in ascending order",
                segment.start, segment.end
            ));
        }
        lowest = segment.end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use farfork_fabric::SeedKey;
    use farfork_wire::Token;

    fn source(seed: &str, port: u16) -> PageSource {
        let key = SeedKey { seed: seed.parse().unwrap(), token: Token::from_bytes([7; 16]) };
        PageSource::new(&key, format!("tcp:127.0.0.1:{port}").parse().unwrap())
    }

    fn plan() -> MemoryPlan {
        let inherited =
            PopulatedRun { first: 1, count: 2, origin: PageOrigin { source: 1, extent: ExtentId(9), page: 70 } };
        let segment = |start, pages, extent, first_page| MapSegment {
            start,
            end: start + pages * PAGE_SIZE,
            extent: ExtentId(extent),
            first_page,
        };
        MemoryPlan {
            sources: vec![source("n2.s01f3a96c5d217e84", 7002), source("n1.s00f3a96c5d217e84", 7001)],
            segments: vec![segment(0x10000, 4, 3, 0), segment(0x20000, 2, 0, 5)],
            member_segments: vec![vec![segment(0x10000, 1, 0, 0)]],
            extents: vec![
                PopulatedExtent { id: ExtentId(0), populated: vec![] },
                PopulatedExtent { id: ExtentId(3), populated: vec![inherited] },
            ],
            strategy: PagingStrategy::default(),
            is_zygote: false,
        }
    }

    #[test]
    fn a_plan_is_read_back_from_a_file_of_mode_0600() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        plan().write(dir.path()).unwrap();
        assert_eq!(MemoryPlan::read(dir.path()).unwrap(), plan());
        let mode = fs::metadata(dir.path().join(PLAN_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_new_plan_of_a_copy_does_not_change_the_shared_plan() {
        let [zygote, copy] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        plan().write_for_copies(zygote.path()).unwrap();
        MemoryPlan::link_for_copy(zygote.path(), copy.path()).unwrap();
        assert_eq!(MemoryPlan::read(copy.path()).unwrap(), plan());
        assert!(PlanFileId::for_copies(zygote.path()).is_some());
        assert_eq!(PlanFileId::for_copies(zygote.path()), PlanFileId::for_child(copy.path()));
        MemoryPlan { segments: Vec::new(), ..plan() }.write(copy.path()).unwrap();
        assert_ne!(PlanFileId::for_copies(zygote.path()), PlanFileId::for_child(copy.path()));
        let next = tempfile::tempdir().unwrap();
        MemoryPlan::link_for_copy(zygote.path(), next.path()).unwrap();
        assert_eq!(MemoryPlan::read(next.path()).unwrap(), plan());
    }

    #[test]
    fn an_inconsistent_plan_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(MemoryPlan::read(dir.path()), Err(PlanError::Read { .. })));
        let mut overlapping = plan();
        overlapping.segments[1].start = 0x13000;
        let mut overlapping_later = plan();
        let twice = overlapping_later.member_segments[0][0];
        overlapping_later.member_segments[0].push(twice);
        let mut unordered = plan();
        unordered.extents.reverse();
        let mut empty_run = plan();
        empty_run.extents[1].populated[0].count = 0;
        let mut too_many = plan();
        too_many.extents[1].populated[0].count = POPULATED_PAGES_MAX + 1;
        let mut from_nowhere = plan();
        from_nowhere.extents[1].populated[0].origin.source = 2;
        let mut from_beyond = plan();
        from_beyond.extents[1].populated[0].origin.page = u64::MAX;
        let mut without_source = plan();
        without_source.sources.clear();
        without_source.extents.clear();
        for wrong in
            [overlapping, overlapping_later, unordered, empty_run, too_many, from_nowhere, from_beyond, without_source]
        {
            wrong.write(dir.path()).unwrap();
            assert!(matches!(MemoryPlan::read(dir.path()), Err(PlanError::Invalid { .. })));
        }
        fs::write(dir.path().join(PLAN_FILE), b"something else").unwrap();
        assert!(matches!(MemoryPlan::read(dir.path()), Err(PlanError::Invalid { .. })));
    }
}
