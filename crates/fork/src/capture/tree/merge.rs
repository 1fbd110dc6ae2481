//! Merges the descriptors of a tree's processes into one.

use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::{
    Backing, DescendantProcess, Descriptor, EagerBytes, Extent, ExtentId, ExtentSource, Layer, MappedFile, MappedRange,
    Mapping, ProcessAttributes, ProcessRelations, SharedObject,
};

use super::{StopReport, TreeRelations};
use crate::capture::files::OpenFileTable;
use crate::capture::shared::SharedObjectTable;

/// Merges the descriptors of all processes, the first process first, with the tables that the tree shares.
pub(in super::super) fn merge_descriptors(
    first: Descriptor,
    others: Vec<Descriptor>,
    tree_relations: TreeRelations,
    open_files: OpenFileTable,
    shared_object_table: SharedObjectTable,
) -> Descriptor {
    let SharedObjectTable { objects: shared_objects, extents } = shared_object_table;
    let OpenFileTable { files, versions, terminals, moved_epoll_targets, attributes: open_file_attributes, .. } =
        open_files;
    let mut merged = Descriptor {
        open_files: files,
        file_versions: versions,
        terminals,
        moved_epoll_targets,
        open_file_attributes,
        zombies: tree_relations.zombies,
        ..first
    };
    let relations = tree_relations.kinships.into_iter().zip(tree_relations.stop_reports);
    for (index, (one, (kinship, stop))) in others.into_iter().zip(relations).enumerate() {
        let Descriptor { mut process, threads, mut mappings, eager_bytes: mut eager, attributes, .. } = one;
        merged.attributes.extend(attributes.into_iter().map(|own| number_attributes(own, index as u32 + 1, &kinship)));
        // State that the process shares with its parent is already in the merged descriptor.
        if kinship.shares_handlers {
            process.signal_actions.clear();
        }
        if kinship.shares_fs {
            process.root = None;
        }
        let file_tables = (one.file_descriptors, one.file_locks, one.file_owners);
        let (file_descriptors, file_locks, file_owners) =
            if kinship.shares_files { Default::default() } else { file_tables };
        if kinship.shares_memory {
            mappings.clear();
            add_eager(eager_pages_of(&mut merged, kinship.parent), std::mem::take(&mut eager));
        } else {
            let (extents, files) = (merged.extents.len() as u32, merged.mapped_files.len() as u32);
            mappings.iter_mut().for_each(|mapping| shift_indices(mapping, extents, files));
            append_extents(&mut merged, one.extents, one.layers, index as u32 + 1);
            let placed = |file: MappedFile| MappedFile {
                owner_range: MappedRange { process: index as u32 + 1, ..file.owner_range },
                ..file
            };
            merged.mapped_files.extend(one.mapped_files.into_iter().map(placed));
        }
        merged.descendants.push(DescendantProcess {
            relations: kinship,
            is_stopped: stop.is_some(),
            has_unreported_stop: stop == Some(StopReport::Pending),
            process,
            threads,
            mappings,
            file_descriptors,
            file_locks,
            file_owners,
            eager_bytes: eager,
        });
    }
    let shared = merged.extents.len() as u32;
    merged.extents.extend(extents);
    let moved = |object: SharedObject| SharedObject { extent: ExtentId(object.extent.0 + shared), ..object };
    merged.shared_objects = shared_objects.into_iter().map(moved).collect();
    merged
}

/// Assigns attributes to the process `number`. Attributes of memory that it shares with its parent are the parent's.
fn number_attributes(own: ProcessAttributes, number: u32, process_relations: &ProcessRelations) -> ProcessAttributes {
    let own = ProcessAttributes { process: number, ..own };
    match process_relations.shares_memory {
        true => ProcessAttributes { merges_memory: false, core_filter: None, local_descriptors: Vec::new(), ..own },
        false => own,
    }
}

/// Returns the eager pages of the process that owns the address space of process `number`. The address space is built with
/// these pages.
fn eager_pages_of(merged: &mut Descriptor, number: u32) -> &mut Vec<EagerBytes> {
    match merged.address_space_owner(number).checked_sub(1) {
        Some(member) => &mut merged.descendants[member as usize].eager_bytes,
        None => &mut merged.eager_bytes,
    }
}

/// Adds pages that are not known yet. Known pages have the same contents, because all processes were stopped.
fn add_eager(known: &mut Vec<EagerBytes>, others: Vec<EagerBytes>) {
    let holds =
        |piece: &EagerBytes, page: u64| (piece.address..piece.address + piece.bytes.len() as u64).contains(&page);
    for EagerBytes { address, bytes } in others {
        for (page, bytes) in (address..).step_by(PAGE_SIZE as usize).zip(bytes.chunks(PAGE_SIZE as usize)) {
            if !known.iter().any(|piece| holds(piece, page)) {
                known.push(EagerBytes { address: page, bytes: bytes.to_vec() });
            }
        }
    }
}

/// Shifts a mapping's indices of extents and files, which are appended to those of earlier processes.
fn shift_indices(mapping: &mut Mapping, extents: u32, files: u32) {
    match &mut mapping.backing {
        Backing::Anonymous { extent: Some(extent) } => extent.0 += extents,
        Backing::PrivateFile { file, extent, .. } => {
            *file += files;
            extent.0 += extents;
        }
        Backing::SharedFile { file, extent, .. } => {
            *file += files;
            extent.iter_mut().for_each(|extent| extent.0 += extents);
        }
        Backing::PrivateObject { written, .. } => written.iter_mut().for_each(|extent| extent.0 += extents),
        Backing::PrivateWritableFile { file, extent, written, .. } => {
            *file += files;
            extent.0 += extents;
            written.iter_mut().for_each(|extent| extent.0 += extents);
        }
        Backing::Anonymous { extent: None } | Backing::SharedMemory { .. } | Backing::Special(_) => {}
    }
}

fn append_extents(merged: &mut Descriptor, extents: Vec<Extent>, layers: Vec<Layer>, process: u32) {
    let known = &mut merged.layers;
    let layer_index = |layer: Layer| {
        let at = known.iter().position(|known| known.seed == layer.seed);
        at.unwrap_or_else(|| {
            known.push(layer);
            known.len() - 1
        }) as u32
    };
    let layer_indices: Vec<u32> = layers.into_iter().map(layer_index).collect();
    merged.extents.extend(extents.into_iter().map(|mut extent| {
        if let ExtentSource::Template { process: own, .. } = &mut extent.source {
            *own = process;
        }
        extent.inherited.iter_mut().for_each(|run| run.layer = layer_indices[run.layer as usize]);
        extent
    }));
}
