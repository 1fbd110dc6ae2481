//! Plans the mappings that the restorer makes, and the sources of their contents. A source is a file of this node, a
//! passed object, or the pager, which serves page faults. `plan` calls it.

use std::collections::{BTreeSet, HashMap};

use farfork_wire::descriptor::{Backing, ExtentId, MappedFile, Mapping, PageRun, SharedObjectKind, SpecialMapping};
use farfork_wire::{Descriptor, PAGE_SIZE};
use rustix::fs::OFlags;

use super::plan::{PlanInputs, PlanOptions};
use super::plan_layout::{
    MAPPING_ANONYMOUS, MAPPING_DONT_DUMP, MAPPING_DONT_FORK, MAPPING_DROPPABLE, MAPPING_FILE, MAPPING_GROWS_DOWN,
    MAPPING_HUGE_PAGE, MAPPING_MERGEABLE, MAPPING_NO_HUGE_PAGE, MAPPING_NO_RESERVE, MAPPING_PASSED, MAPPING_RANDOM,
    MAPPING_SEQUENTIAL, MAPPING_SHARED, MAPPING_WIPE_ON_FORK, PlanFile, PlanMapping, PlanRange, PlanSpecialMapping,
};
use super::plan_writer::PlanWriter;
use super::stub_map::StubMap;
use super::syscalls::is_mapped_by_shmat;
use super::vdso::VdsoBridge;
use super::{LocalNode, RestoreError};
use crate::file_identity;

/// The tables that describe an address space.
#[derive(Debug, Default)]
pub(super) struct AddressSpacePlan {
    pub(super) mappings: Vec<PlanMapping>,
    pub(super) files: Vec<PlanFile>,
    pub(super) special_mappings: Vec<PlanSpecialMapping>,
    pub(super) userfaultfd_ranges: Vec<PlanRange>,
    /// Guard pages. Access to them raises SIGSEGV.
    pub(super) guards: Vec<PlanRange>,
    /// The code that replaces the parent's vdso, if this kernel has another vdso.
    pub(super) bridge_image: Option<Vec<u8>>,
    /// Ranges that are locked in memory. A fork does not inherit the locks.
    pub(super) locked_ranges: Vec<PlanRange>,
    /// Start addresses of private mappings into which the restorer writes the process's own pages.
    pub(super) overlaid_mappings: BTreeSet<u64>,
}

/// Which part of an address space is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PlanScope {
    /// All of a child's address space.
    Whole,
    /// The memory that copies of a zygote inherit: all but the mappings of [`is_shared_by_fork`].
    Zygote,
    /// The mappings of [`is_shared_by_fork`], which a copy of a zygote makes itself.
    ZygoteCopy {
        /// The zygote's restorer region, which the copy unmaps: start and length.
        zygote_region: (u64, u64),
    },
}

/// Returns for each mapped file of the descriptor whether this node has the same file at its path.
pub(super) fn find_matching_files(descriptor: &Descriptor, node: &LocalNode) -> Vec<bool> {
    let same_boot = node.is_origin_machine(&descriptor.origin);
    let is_here = |file: &MappedFile| {
        let path = node.resolve_path(&file.path);
        path.is_ok_and(|path| file_identity::is_same_file(&path, &file.identity, same_boot))
    };
    descriptor.mapped_files.iter().map(is_here).collect()
}

impl AddressSpacePlan {
    /// Compiles the tables. `is_here` has the result of [`find_matching_files`].
    pub(super) fn compile(
        inputs: &PlanInputs<'_>,
        is_here: &[bool],
        writer: &mut PlanWriter,
    ) -> Result<Self, RestoreError> {
        let PlanInputs { descriptor, stub, plan_options: &PlanOptions { bridge, scope, .. }, .. } = *inputs;
        let mut space = Self::default();
        if let Some(bridge) = bridge {
            let placed = bridge.place(descriptor, stub)?;
            (space.special_mappings, space.bridge_image) = (placed.special_mappings, Some(placed.image));
        }
        let mut opened = HashMap::new();
        for mapping in &descriptor.mappings {
            if mapping.flags.locked && scope != PlanScope::Zygote {
                space.locked_ranges.push(PlanRange { start: mapping.start, bytes: mapping.end - mapping.start });
            }
            let is_planned = match scope {
                PlanScope::Whole => true,
                PlanScope::Zygote => !is_shared_by_fork(mapping),
                PlanScope::ZygoteCopy { .. } => is_shared_by_fork(mapping),
            };
            if !is_planned {
                continue;
            }
            space.guards.extend(guard_ranges(mapping));
            match mapping.backing {
                Backing::Anonymous { extent } => space.add_anonymous(mapping, extent, descriptor),
                Backing::PrivateFile { file, extent, .. } | Backing::PrivateWritableFile { file, extent, .. }
                    if !is_here[file as usize] =>
                {
                    space.add_anonymous(mapping, Some(extent), descriptor);
                }
                Backing::PrivateFile { file, offset, .. } => {
                    let source = space.add_mapped_file(file, OFlags::RDONLY, descriptor, &mut opened, writer)?;
                    space.add_mapping(mapping, MAPPING_FILE, source, offset, 0);
                }
                Backing::PrivateWritableFile { file, offset, .. } => {
                    // Open for writing: a read-only open through overlayfs refers to the lower file, and misses later
                    // writes, which copy the file up.
                    let source = space.add_mapped_file(file, OFlags::RDWR, descriptor, &mut opened, writer)?;
                    space.add_mapping(mapping, MAPPING_FILE, source, offset, 0);
                    space.overlaid_mappings.insert(mapping.start);
                }
                Backing::SharedFile { file, offset, writable, .. } => {
                    let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
                    let source = space.add_mapped_file(file, access, descriptor, &mut opened, writer)?;
                    space.add_mapping(mapping, MAPPING_FILE, source, offset, MAPPING_SHARED);
                }
                Backing::SharedMemory { object, offset } => {
                    space.add_shared_object(mapping, object, offset, MAPPING_SHARED, inputs, writer)?;
                }
                Backing::PrivateObject { object, offset, .. } => {
                    space.add_shared_object(mapping, object, offset, 0, inputs, writer)?;
                    space.overlaid_mappings.insert(mapping.start);
                }
                Backing::Special(kind) => match bridge {
                    Some(bridge) => space.add_vdso_bridge(mapping, kind, bridge)?,
                    None => space.special_mappings.push(plan_special_mapping(mapping, kind, stub)?),
                },
            }
        }
        // The restorer opens each file once, so the mappings of one file must be adjacent in the table.
        space
            .mappings
            .sort_by_key(|mapping| (mapping.kind, if mapping.kind == MAPPING_FILE { mapping.source } else { 0 }));
        Ok(space)
    }

    fn add_mapping(&mut self, mapping: &Mapping, kind: u8, source: u32, offset: u64, flags: u16) {
        self.mappings.push(PlanMapping {
            start: mapping.start,
            bytes: mapping.end - mapping.start,
            offset,
            source,
            kind,
            protection: mapping.protection,
            flags: flags | mapping_flags(mapping),
        });
    }

    /// Adds a mapping of a shared object, from `offset` on. `flags` is MAPPING_SHARED, or 0 for a private mapping. A private
    /// mapping of a System V segment maps the memfd that fills the segment, because the segment itself has no descriptor.
    fn add_shared_object(
        &mut self,
        mapping: &Mapping,
        object: u32,
        offset: u64,
        flags: u16,
        inputs: &PlanInputs<'_>,
        writer: &mut PlanWriter,
    ) -> Result<(), RestoreError> {
        match &inputs.descriptor.shared_objects[object as usize].kind {
            kind if is_mapped_by_shmat(kind) && flags & MAPPING_SHARED != 0 => {}
            SharedObjectKind::PosixShm { path, .. } => {
                // Open for writing: mprotect(2) may later make a read-only mapping writable, as with memfds.
                let source = self.add_file(path, OFlags::RDWR, writer)?;
                self.add_mapping(mapping, MAPPING_FILE, source, offset, flags);
            }
            _ => {
                let slot = inputs.objects.slot_of_shared_object(object);
                self.add_mapping(mapping, MAPPING_PASSED, slot, offset, flags);
            }
        }
        Ok(())
    }

    fn add_anonymous(&mut self, mapping: &Mapping, extent: Option<ExtentId>, descriptor: &Descriptor) {
        self.add_mapping(mapping, MAPPING_ANONYMOUS, 0, 0, 0);
        // Memory without data needs no pager: the kernel fills it with zeroes.
        if extent.is_none_or(|id| descriptor.extents[id.0 as usize].is_empty()) {
            return;
        }
        match self.userfaultfd_ranges.last_mut() {
            Some(last) if last.start + last.bytes == mapping.start => last.bytes += mapping.end - mapping.start,
            _ => self.userfaultfd_ranges.push(PlanRange { start: mapping.start, bytes: mapping.end - mapping.start }),
        }
    }

    /// Maps anonymous memory in place of the parent's vdso and its data pages. The vdso's mapping stays writable until
    /// its code is copied.
    fn add_vdso_bridge(
        &mut self,
        mapping: &Mapping,
        kind: SpecialMapping,
        bridge: &VdsoBridge,
    ) -> Result<(), RestoreError> {
        const PROT_READ_WRITE: u8 = 3;
        let is_vdso = kind == SpecialMapping::Vdso;
        if is_vdso && !bridge.fits_in(mapping) {
            let (wanted, found) =
                (mapping.end - mapping.start, self.bridge_image.as_ref().map(|image| image.len() as u64));
            return Err(RestoreError::SpecialMappingMismatch { kind, wanted, found });
        }
        let protection = if is_vdso { PROT_READ_WRITE } else { 0 };
        self.add_mapping(&Mapping { protection, ..mapping.clone() }, MAPPING_ANONYMOUS, 0, 0, 0);
        Ok(())
    }

    fn add_file(&mut self, path: &str, access: OFlags, writer: &mut PlanWriter) -> Result<u32, RestoreError> {
        let path = writer.write_text(path)?;
        self.files.push(PlanFile { path, flags: (access | OFlags::CLOEXEC | OFlags::NOCTTY).bits() });
        Ok(self.files.len() as u32 - 1)
    }

    fn add_mapped_file(
        &mut self,
        file: u32,
        access: OFlags,
        descriptor: &Descriptor,
        opened: &mut HashMap<(u32, u32), u32>,
        writer: &mut PlanWriter,
    ) -> Result<u32, RestoreError> {
        if let Some(known) = opened.get(&(file, access.bits())) {
            return Ok(*known);
        }
        let index = self.add_file(&descriptor.mapped_files[file as usize].path, access, writer)?;
        opened.insert((file, access.bits()), index);
        Ok(index)
    }
}

/// Whether fork(2) would share the mapping's memory, or its object, between a zygote and its copies. Each child needs
/// its own, so a copy maps it itself.
fn is_shared_by_fork(mapping: &Mapping) -> bool {
    matches!(mapping.backing, Backing::SharedFile { .. } | Backing::SharedMemory { .. } | Backing::PrivateObject { .. })
}

fn guard_ranges(mapping: &Mapping) -> impl Iterator<Item = PlanRange> {
    let start = mapping.start;
    let range = move |run: &PageRun| PlanRange { start: start + run.first * PAGE_SIZE, bytes: run.count * PAGE_SIZE };
    mapping.guards.iter().map(range)
}

fn mapping_flags(mapping: &Mapping) -> u16 {
    let flags = mapping.flags;
    [
        (flags.grows_down, MAPPING_GROWS_DOWN),
        (flags.no_reserve, MAPPING_NO_RESERVE),
        (flags.huge_page, MAPPING_HUGE_PAGE),
        (flags.no_huge_page, MAPPING_NO_HUGE_PAGE),
        (flags.wipe_on_fork, MAPPING_WIPE_ON_FORK),
        (flags.dont_dump, MAPPING_DONT_DUMP),
        (flags.sequential, MAPPING_SEQUENTIAL),
        (flags.random, MAPPING_RANDOM),
        (flags.mergeable, MAPPING_MERGEABLE),
        (flags.dont_fork, MAPPING_DONT_FORK),
        (flags.droppable, MAPPING_DROPPABLE),
    ]
    .into_iter()
    .filter(|(is_set, _)| *is_set)
    .fold(0, |bits, (_, bit)| bits | bit)
}

/// Moves the stub's own vdso or vvar to the parent's address. Fails if its size differs from the parent's.
fn plan_special_mapping(
    mapping: &Mapping,
    kind: SpecialMapping,
    stub: &StubMap,
) -> Result<PlanSpecialMapping, RestoreError> {
    let bytes = mapping.end - mapping.start;
    match stub.special_mapping(kind) {
        Some((start, end)) if end - start == bytes => Ok(PlanSpecialMapping { from: start, to: mapping.start, bytes }),
        found => Err(RestoreError::SpecialMappingMismatch {
            kind,
            wanted: bytes,
            found: found.map(|(start, end)| end - start),
        }),
    }
}
