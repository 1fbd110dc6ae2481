//! Private mappings of files that a process of the seed may write to by an open file or a shared mapping.
//! Pages that were not written through the mapping show writes to the file (mmap(2)), also in a child.
//! `link_writable_files` marks the mappings when the descriptor of all processes, and so the set of files, is complete.

use std::collections::BTreeMap;

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{Backing, Extent, ExtentId, ExtentSource, Mapping, PageRun};

use crate::file_use::{FileUse, collect_file_uses};

/// Pages that were written in the private file mappings of one process, by the address of the mapping.
pub(crate) type WrittenMappings = BTreeMap<u64, WrittenMapping>;

/// Pages that were written through a private file mapping.
#[derive(Debug)]
pub(crate) struct WrittenMapping {
    /// Index into the mapped files of the same process.
    pub(crate) file: u32,
    /// Offset in the file, in bytes.
    pub(crate) offset: u64,
    pub(crate) pages: Vec<PageRun>,
}

/// Links private mappings of writable files to their files. `written`: one item per process, the first process first.
pub(crate) fn link_writable_files(descriptor: &mut Descriptor, written: Vec<WrittenMappings>) {
    let uses = collect_file_uses(descriptor);
    let is_written = |file: u32| {
        let identity = &descriptor.mapped_files[file as usize].identity;
        uses.get(&FileUse::file_key(identity)).is_some_and(|used| used.is_written)
    };
    let writable: Vec<bool> = (0..descriptor.mapped_files.len() as u32).map(is_written).collect();
    if !writable.contains(&true) {
        return;
    }
    let mut files_before = 0;
    let Descriptor { mappings, descendants: members, mapped_files, extents, .. } = descriptor;
    let maps = std::iter::once(mappings).chain(members.iter_mut().map(|member| &mut member.mappings));
    for (process, (mappings, mut written)) in (0..).zip(maps.zip(written)) {
        for mapping in mappings {
            let pages = written.remove(&mapping.start);
            let pages = pages.map(|pages| WrittenMapping { file: pages.file + files_before, ..pages });
            link_mapping(mapping, process, pages, &writable, extents);
        }
        files_before += mapped_files.iter().filter(|file| file.owner_range.process == process).count() as u32;
    }
}

fn link_mapping(
    mapping: &mut Mapping,
    process: u32,
    pages: Option<WrittenMapping>,
    writable: &[bool],
    extents: &mut Vec<Extent>,
) {
    mapping.backing = match (mapping.backing, pages) {
        (Backing::PrivateFile { file, offset, extent }, _) if writable[file as usize] => {
            Backing::PrivateWritableFile { file, offset, extent, written: None }
        }
        (Backing::Anonymous { extent: Some(extent) }, Some(WrittenMapping { file, offset, pages }))
            if writable[file as usize] =>
        {
            let source = ExtentSource::Template { process, address: mapping.start };
            let bytes = mapping.end - mapping.start;
            extents.push(Extent { source, bytes, populated: pages, inherited: Vec::new() });
            let written = Some(ExtentId(extents.len() as u32 - 1));
            Backing::PrivateWritableFile { file, offset, extent, written }
        }
        (other, _) => other,
    };
}
